"""The compiler of the simulator: numba, with an on-disk cache that follows the sources."""

import gc
import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numba
from numba.extending import overload, register_jitable

from pinn.common.code import code_digest
from pinn.common.files import cache_folder
from pinn.errors import PinnError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_config: Any = numba.config

#: First release of numba that ``pinn.simulator.compiled_engine`` has not been tested with.
_UNTESTED = (0, 69)


def _know_engines() -> None:
    """Tell numba what an engine is.

    Raises:
        PinnError: If this release of numba is untested.
    """
    if tuple(int(part) for part in numba.__version__.split(".")[:2]) >= _UNTESTED:
        raise PinnError(
            f"numba {numba.__version__} is untested; the simulator was tested with 0.60 to 0.68: "
            "pip install 'numba<0.69'"
        )
    from pinn.simulator import compiled_engine  # noqa: F401


def _folder(function: Callable[..., Any]) -> str:
    """Return a folder of its own for each state of the code that a function calls.

    numba notices a change of the file that holds a compiled function, not of the others.
    """
    base = _config.CACHE_DIR or cache_folder()
    return str(Path(base) / f"simulator-{code_digest(function)[:16]}")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, or load what an earlier process compiled.

    It releases the interpreter lock, so that threads run simulations side by side. Without a
    writable cache folder every process compiles anew.

    Raises:
        PinnError: If this release of numba is untested.
    """
    _know_engines()
    jit = partial(numba.njit, nogil=True, error_model="numpy")
    before, _config.CACHE_DIR = _config.CACHE_DIR, _folder(function)
    try:
        jitted = jit(cache=True)(function)
    except RuntimeError:
        jitted = jit()(function)
    finally:
        _config.CACHE_DIR = before
    return wraps(function)(partial(_call, jitted))


def _call(jitted: Any, *args: Any) -> Any:
    """Call a function that may have to be compiled first.

    ``NUMBA_OPT`` 1 saves a seventh of the compiler's time and costs the loop nothing; the garbage
    collector would go through all that the compiler makes.
    """
    known, enabled, level = len(jitted.signatures), gc.isenabled(), os.environ.get("NUMBA_OPT")
    gc.disable()
    os.environ["NUMBA_OPT"] = level or "1"
    try:
        return jitted(*args)
    finally:
        if level is None:
            os.environ.pop("NUMBA_OPT", None)
        if enabled:
            if len(jitted.signatures) > known:
                gc.freeze()  # What the compiler made counts as old, so that it is not looked
                gc.unfreeze()  # through as soon as the collector goes on.
            gc.enable()


#: Of functions that compiled functions alone call.
_INNER: Any = {
    "nogil": True,
    "error_model": "numpy",
}
#: For functions that compiled functions call; from Python they are called as they are.
inner = register_jitable(**_INNER)


def compiled_as(plain: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Decorate what chooses a function's form in compiled code, as ``numba.extending.overload``."""
    decorate: Callable[[_Function], _Function] = overload(plain, jit_options=_INNER)
    return decorate


def compiled_inside(module: str) -> None:
    """Let compiled functions call every function that a module has defined so far."""
    for function in [*vars(sys.modules[module]).values()]:
        if isinstance(function, FunctionType) and function.__module__ == module:
            inner(function)
