"""Types and shapes at every call of the program, as jaxtyping checks them but several times faster.

jaxtyping's own decorator binds the arguments, checks them in a stand-in of the function and, with
what it returned, once more in another. Here beartype wraps the function itself, inside a context in
which axes of one name are of one size; a function that names no array needs no context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from inspect import isclass
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError, config
from jaxtyping import jaxtyped as _jaxtyped

#: An int may stand for a float, as for the type checkers (PEP 484).
check = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeCheckError))


def jaxtyped(*, typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorator that jaxtyping's import hook uses for every function and class."""
    return partial(_checked, typechecker)


def _checked(typechecker: Callable[[Any], Any], fn: Any) -> Any:
    if isclass(fn):
        if is_dataclass(fn) and not hasattr(fn.__init__, "__wrapped__"):
            fn.__init__ = _checked(typechecker, fn.__init__)
        return fn
    fn.__annotations__ = _hints(fn)
    checked = typechecker(fn)
    if not any(_names_an_array(hint) for hint in fn.__annotations__.values()):
        return checked

    @wraps(fn)
    def in_context(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return fn(*args, **kwargs)
        with _jaxtyped("context"):
            return checked(*args, **kwargs)

    return in_context


def _hints(fn: Any) -> dict[str, Any]:
    """Annotations of a function; Any for those whose names are not defined yet or never."""
    return {name: _hint(hint, fn.__globals__) for name, hint in fn.__annotations__.items()}


def _hint(hint: Any, names: dict[str, Any]) -> Any:
    holder = SimpleNamespace(__annotations__={"hint": hint})
    known = names | {"Json": object}  # the parts of a JSON document: beartype cannot recurse
    try:
        return get_type_hints(holder, known, include_extras=True)["hint"]
    except (NameError, TypeError):  # names or subscripts that type checkers alone know
        return Any


def _names_an_array(hint: Any) -> bool:
    if isinstance(hint, list):  # the arguments of a Callable
        return any(_names_an_array(part) for part in hint)
    if isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(_names_an_array(part) for part in get_args(hint))
