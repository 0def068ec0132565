"""An engine in compiled code: one pointer, behind which its records and arrays are.

numba would pass a tuple of thirty arrays as two hundred numbers, and count references at every
access to a ``structref``: either doubles what compiling takes, or slows the loop by a quarter.
"""

import operator
from typing import Any

from llvmlite import ir
from numba import extending as nb
from numba import from_dtype, types
from numba.core.typing.templates import AttributeTemplate

from pinn.simulator.engine import ARRAYS, ENGINE, Engine

_INT64 = ir.IntType(64)
_OFFSETS, _LENGTHS = ({n: f[1] for n, f in d.fields.items()} for d in (ENGINE, ENGINE["config"]))


class _Pointer(types.Opaque):
    """Type of an engine, or of one of its arrays: a pointer to the record ``ENGINE``."""


_ENGINE, _TABLES = _Pointer("Engine"), {name: _Pointer(f"Engine.{name}") for name in ARRAYS}
_ITEMS = {_TABLES[name]: from_dtype(array.dtype) for name, array in ARRAYS.items()}
nb.register_model(_Pointer)(nb.models.OpaqueModel)
nb.typeof_impl.register(Engine)(lambda _engine, _: _ENGINE)


@nb.unbox(_Pointer)
def _unbox(_: Any, engine: Any, c: Any) -> nb.NativeValue:
    number = c.pyapi.object_getattr_string(engine, "pointer")
    pointer = c.pyapi.long_as_voidptr(number)
    c.pyapi.decref(number)
    return nb.NativeValue(pointer)


@nb.infer_getattr
class _Attributes(AttributeTemplate):
    key = _Pointer

    def generic_resolve(self, _: Any, name: str) -> Any:
        return from_dtype(ENGINE[name]) if name in _OFFSETS else _TABLES.get(name)


@nb.lower_getattr_generic(_Pointer)
def _attribute(context: Any, builder: Any, _: Any, pointer: Any, name: str) -> Any:
    if name in _TABLES:
        return pointer
    inner = builder.gep(pointer, [_INT64(_OFFSETS[name])])
    return builder.bitcast(inner, context.get_value_type(from_dtype(ENGINE[name])))


def _item(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Return a pointer to an item: where its array begins, and its place in it."""

    def load(offset: int) -> Any:
        where = builder.gep(values[0], [_INT64(offset)])
        return builder.load(builder.bitcast(where, _INT64.as_pointer()))

    (table, kind), place = signature.args[:2], _INT64(0)
    number = list(_TABLES.values()).index(table)
    dtype, shape = list(ARRAYS.values())[number]
    for axis, length in enumerate(shape):
        several = isinstance(kind, types.BaseTuple)
        part = builder.extract_value(values[1], axis) if several else values[1]
        part = context.cast(builder, part, kind[axis] if several else kind, types.int64)
        place = builder.add(builder.mul(place, load(_LENGTHS[length])), part) if axis else part
    begin = load(_OFFSETS["address"] + 8 * number)
    address = builder.add(begin, builder.mul(place, _INT64(dtype.itemsize)))
    return builder.inttoptr(address, context.get_data_type(_ITEMS[table]).as_pointer())


nb.type_callable(operator.getitem)(lambda _: lambda table, _index: _ITEMS.get(table))
nb.type_callable(operator.setitem)(lambda _: lambda table, _index, _value: _ITEMS.get(table))


@nb.lower_builtin(operator.getitem, _Pointer, types.Any)
@nb.lower_builtin(operator.setitem, _Pointer, types.Any, types.Any)
def _access(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    kind, item = _ITEMS[signature.args[0]], _item(context, builder, signature, values)
    if len(values) == 3:
        value = context.cast(builder, values[2], signature.args[2], kind)
        context.pack_value(builder, kind, value, item)
    return context.unpack_value(builder, kind, item)
