"""An engine in compiled code: one pointer, and items of its arrays behind it.

A tuple of its thirty arrays would be passed as two hundred numbers; with ``structref`` of numba
every access counts references. Either makes the compiler or the loop slower.
"""

import operator
from typing import Any

from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_builtin,
    lower_getattr_generic,
    models,
    register_model,
    type_callable,
    typeof_impl,
    unbox,
)  # fmt: skip

from pinn.simulator.engine import ARRAYS, ENGINE, Engine

_OFFSETS = {name: ENGINE.fields[name][1] for name in ENGINE.names}
_CONFIG = ENGINE["config"].fields


class _EngineType(types.Opaque):
    """Type of an engine, or of one of its arrays: a pointer to the record ``ENGINE``."""


_ENGINE = _EngineType("Engine")
_TABLES = {name: _EngineType(f"Engine.{name}") for name in ARRAYS}
_ITEMS = {_TABLES[name]: from_dtype(dtype) for name, (dtype, _) in ARRAYS.items()}
register_model(_EngineType)(models.OpaqueModel)
typeof_impl.register(Engine)(lambda engine, _: _ENGINE)


@unbox(_EngineType)
def _(_typ: Any, engine: Any, c: Any) -> NativeValue:
    record = c.pyapi.object_getattr_string(engine, "pointer")
    pointer = c.pyapi.long_as_voidptr(record)
    c.pyapi.decref(record)
    return NativeValue(pointer)


@infer_getattr
class _Attributes(AttributeTemplate):
    key = _EngineType

    def generic_resolve(self, engine: Any, name: str) -> Any:
        return from_dtype(ENGINE[name]) if name in _OFFSETS else _TABLES.get(name)


@lower_getattr_generic(_EngineType)
def _(context: Any, builder: Any, typ: Any, pointer: Any, name: str) -> Any:
    if name in _TABLES:
        return pointer
    inner = cgutils.pointer_add(builder, pointer, _OFFSETS[name])
    return builder.bitcast(inner, context.get_value_type(from_dtype(ENGINE[name])))


def _item(context: Any, builder: Any, types_: Any, values: Any) -> Any:
    """Return a pointer to an item: where its array begins, and its place in it."""

    def load(offset: int) -> Any:
        where = cgutils.pointer_add(builder, values[0], offset)
        return builder.load(builder.bitcast(where, ir.IntType(64).as_pointer()))

    table, index = types_[:2]
    number = list(ARRAYS).index(table.name.partition(".")[2])
    dtype, shape = list(ARRAYS.values())[number]
    several = isinstance(index, types.BaseTuple)
    parts = cgutils.unpack_tuple(builder, values[1]) if several else [values[1]]
    place = None
    for part, kind, size in zip(parts, index if several else [index], shape, strict=True):
        i = context.cast(builder, part, kind, types.int64)
        place = i if place is None else builder.add(builder.mul(place, load(_CONFIG[size][1])), i)
    begin = load(_OFFSETS["address"] + 8 * number)
    address = builder.add(begin, builder.mul(place, place.type(dtype.itemsize)))
    return builder.inttoptr(address, context.get_data_type(_ITEMS[table]).as_pointer())


@type_callable(operator.getitem)
def _(_context: Any) -> Any:
    return lambda table, index: _ITEMS.get(table)


@type_callable(operator.setitem)
def _(_context: Any) -> Any:
    return lambda table, index, value: types.none if table in _ITEMS else None


@lower_builtin(operator.getitem, _EngineType, types.Any)
def _(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    item = _item(context, builder, signature.args, values)
    return context.unpack_value(builder, signature.return_type, item)


@lower_builtin(operator.setitem, _EngineType, types.Any, types.Any)
def _(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    item = _ITEMS[signature.args[0]]
    value = context.cast(builder, values[2], signature.args[2], item)
    context.pack_value(builder, item, value, _item(context, builder, signature.args, values))
    return context.get_dummy_value()
