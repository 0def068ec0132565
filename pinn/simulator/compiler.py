"""The compiler of the simulator: numba, with an on-disk cache that follows the sources."""

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numba
from filelock import FileLock
from numba.extending import overload, register_jitable

import pinn.simulator.compiled_engine  # noqa: F401  tells numba what an engine is
from pinn.common.code import code_digest
from pinn.common.files import cache_folder

_Function = TypeVar("_Function", bound=Callable[..., Any])
_config: Any = numba.config


def _folder(function: Callable[..., Any]) -> str:
    """Return a cache folder that is unique to the code that a function calls.

    numba notices a change of the file that holds a compiled function, not of the others.
    """
    base = _config.CACHE_DIR or cache_folder()
    return str(Path(base) / f"simulator-{code_digest(function)[:16]}")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, or load what an earlier process compiled.

    It releases the interpreter lock, so that threads run simulations side by side. Without a
    writable cache folder every process compiles again.
    """
    jit = partial(numba.njit, nogil=True, error_model="numpy")
    folder = _folder(function)
    before, _config.CACHE_DIR = _config.CACHE_DIR, folder
    try:
        jitted = jit(cache=True)(function)
    except RuntimeError:
        return wraps(function)(partial(_call, jit()(function), None))
    finally:
        _config.CACHE_DIR = before
    return wraps(function)(partial(_call, jitted, Path(folder) / f"{function.__name__}.lock"))


def _call(jitted: Any, lock: Path | None, *args: Any) -> Any:
    """Call a function; compile or load it first where these types are new to the process."""
    missing = jitted.py_func.__code__.co_argcount - len(args)
    args = (*args, *(jitted.py_func.__defaults__ or ())[-missing:]) if missing else args
    types = tuple(map(numba.typeof, args))
    if types not in jitted.overloads:
        _compile(jitted, lock, types)
    return jitted(*args)


def _compile(jitted: Any, lock: Path | None, types: tuple[Any, ...]) -> None:
    """Compile or load a function for types, one process at a time, without garbage collection.

    numba writes its index and the code apart: two processes that compile one function for different
    types at the same time may leave an index that names the code of the other.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        with nullcontext() if lock is None else FileLock(lock):
            jitted.compile(types)
    finally:
        if enabled:
            # Objects that the compiler made become permanent, so that the next collection skips
            # them.
            gc.freeze()
            gc.unfreeze()
            gc.enable()


#: Decorator for functions that only compiled functions call.
_INNER: Any = {"nogil": True, "error_model": "numpy"}
#: Decorator for functions that compiled functions call; Python calls the plain function.
inner = register_jitable(**_INNER)


def compiled_as(plain: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Decorate a function that selects the compiled form of ``function``."""
    decorate: Callable[[_Function], _Function] = overload(plain, jit_options=_INNER)
    return decorate


def compiled_inside(module: str) -> None:
    """Let compiled functions call every function that a module has defined so far."""
    for function in [*vars(sys.modules[module]).values()]:
        if isinstance(function, FunctionType) and function.__module__ == module:
            inner(function)
