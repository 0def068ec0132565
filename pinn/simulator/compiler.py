"""Compilation of the simulator with numba, with an on-disk cache that detects changed sources."""

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar

import numba
from filelock import FileLock
from numba.extending import overload, register_jitable

import pinn.simulator.compiled_engine  # noqa: F401  tells numba what an engine is
from pinn.common.code import code_digest
from pinn.common.files import cache_folder
from pinn.common.progress import doing_meanwhile

_Function = TypeVar("_Function", bound=Callable[..., Any])
_config: Any = numba.config
#: Current task while a function is compiled or loaded.
_WORK = "compiling the simulator, which is needed once and takes about a minute"
#: Number of times that this process has compiled a function, without loading it.
_COUNT = SimpleNamespace(compiled=0)


def compilations() -> int:
    """Return how often this process has compiled a function that no earlier process compiled."""
    return int(_COUNT.compiled)


def _folder(function: Callable[..., Any]) -> str:
    """Return a cache folder whose name depends on all code that a function calls.

    numba detects changes in the file that defines a compiled function, but not in the files that
    define its callees.
    """
    base = _config.CACHE_DIR or cache_folder()
    return str(Path(base) / f"simulator-{code_digest(function)[:16]}")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function on its first call, or load the code that an earlier process compiled.

    The compiled function releases the interpreter lock, so that threads run simulations in
    parallel. Without a writable cache folder, every process recompiles the function.
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
    """Call a function; compile or load it first if these argument types are new to the process."""
    missing = jitted.py_func.__code__.co_argcount - len(args)
    args = (*args, *(jitted.py_func.__defaults__ or ())[-missing:]) if missing else args
    types = tuple(map(numba.typeof, args))
    if types not in jitted.overloads:
        _compile(jitted, lock, types)
    return jitted(*args)


def _compile(jitted: Any, lock: Path | None, types: tuple[Any, ...]) -> None:
    """Compile or load a function for argument types, with a lock and garbage collection off.

    numba writes its index and the code separately. Without the lock, two processes that compile one
    function for different types at the same time may leave an index that points to the wrong code.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        with nullcontext() if lock is None else FileLock(lock):
            missed = _misses(jitted)
            with doing_meanwhile(_WORK):
                jitted.compile(types)
            _COUNT.compiled += _misses(jitted) > missed or lock is None
    finally:
        if enabled:
            # Move the compiler's objects to the oldest generation, so that most garbage collections
            # skip them.
            gc.freeze()
            gc.unfreeze()
            gc.enable()


def _misses(jitted: Any) -> int:
    """Return how often a function was compiled because the cache did not have it."""
    return sum(jitted.stats.cache_misses.values())


#: Options of numba for functions that only compiled functions call.
_INNER: Any = {"nogil": True, "error_model": "numpy"}
#: Decorator for functions that compiled functions call; Python calls them uncompiled.
inner = register_jitable(**_INNER)


def compiled_as(plain: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Return a decorator for a function that replaces ``plain`` in compiled code."""
    decorate: Callable[[_Function], _Function] = overload(plain, jit_options=_INNER)
    return decorate


def compiled_inside(module: str) -> None:
    """Allow compiled functions to call every function defined so far in a module."""
    for function in [*vars(sys.modules[module]).values()]:
        if isinstance(function, FunctionType) and function.__module__ == module:
            inner(function)
