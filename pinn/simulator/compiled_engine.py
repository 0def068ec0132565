"""Numba type of a simulated engine: a pointer, defined through numba's extension interface."""

import hashlib
import operator
from typing import Any

from llvmlite import ir
from numba import extending as nb
from numba import from_dtype, types

from pinn.simulator.engine import ARRAYS, ENGINE, Engine, offsets


def _mangling_args(record: types.Record) -> tuple[str, tuple[str, ...]]:
    """Return the name of a record type in compiled symbols, derived from its fields.

    numba renumbers record types in each process, so two processes can give different records the
    same symbol. A third process that loads both from the cache would run the wrong code.
    """
    return "Record", (hashlib.sha256(record.name.encode()).hexdigest(),)


setattr(types.Record, "mangling_args", property(_mangling_args))  # noqa: B010

_INT64 = ir.IntType(64)
_OFFSETS, _LENGTHS = offsets(ENGINE), offsets(ENGINE["config"])


class _Pointer(types.Opaque):
    """Numba type of a simulated engine or of one of its arrays: a pointer to a numpy record.

    As a tuple of arrays or a ``structref``, the engine would double the compilation time or slow
    the compiled loop by 25 %.
    """


_TABLES = {name: _Pointer(f"Engine.{name}") for name in ARRAYS}
_ITEMS = {_TABLES[name]: from_dtype(array.dtype) for name, array in ARRAYS.items()}
nb.register_model(_Pointer)(nb.models.OpaqueModel)
nb.typeof_impl.register(Engine)(lambda _engine, _: _Pointer("Engine"))
nb.type_callable(operator.getitem)(lambda _: lambda table, _index: _ITEMS.get(table))
nb.type_callable(operator.setitem)(lambda _: lambda table, _index, _value: _ITEMS.get(table))


@nb.unbox(_Pointer)
def _unbox(_: types.Type, engine: ir.Value, c: Any) -> nb.NativeValue:
    number = c.pyapi.object_getattr_string(engine, "pointer")
    pointer = c.pyapi.long_as_voidptr(number)
    c.pyapi.decref(number)
    return nb.NativeValue(pointer)


def _attribute(name: str) -> None:
    kind = _TABLES.get(name) or from_dtype(ENGINE[name])

    def part(_: Any, engine: types.Type) -> tuple[Any, Any]:
        def emit(context: Any, builder: ir.IRBuilder, _: Any, values: list[ir.Value]) -> ir.Value:
            place = builder.gep(values[0], [_INT64(_OFFSETS.get(name, 0))])
            return builder.bitcast(place, context.get_value_type(kind))

        return kind(engine), emit

    read: Any = nb.intrinsic(part)
    nb.overload_attribute(_Pointer, name)(lambda engine: lambda engine: read(engine))  # noqa: ARG005


for attribute in (*_TABLES, "config", "counters"):
    _attribute(attribute)


@nb.lower_builtin(operator.getitem, _Pointer, types.Any)
@nb.lower_builtin(operator.setitem, _Pointer, types.Any, types.Any)
def _access(
    context: Any, builder: ir.IRBuilder, signature: Any, values: list[ir.Value]
) -> ir.Value:
    def load(offset: int) -> ir.Value:
        where = builder.gep(values[0], [_INT64(offset)])
        return builder.load(builder.bitcast(where, _INT64.as_pointer()))

    (table, kind), place = signature.args[:2], _INT64(0)
    several, number = isinstance(kind, types.BaseTuple), [*_TABLES.values()].index(table)
    dtype, shape = [*ARRAYS.values()][number]
    for axis, length in enumerate(shape):
        part = builder.extract_value(values[1], axis) if several else values[1]
        part = context.cast(builder, part, kind[axis] if several else kind, types.int64)
        place = builder.add(builder.mul(place, load(_LENGTHS[length])), part) if axis else part
    begin = load(_OFFSETS["address"] + 8 * number)
    address = builder.add(begin, builder.mul(place, _INT64(dtype.itemsize)))
    item = builder.inttoptr(address, context.get_data_type(_ITEMS[table]).as_pointer())
    if len(values) > 2:
        value = context.cast(builder, values[2], signature.args[2], _ITEMS[table])
        context.pack_value(builder, _ITEMS[table], value, item)
    return context.unpack_value(builder, _ITEMS[table], item)
