"""The compiler of the simulator: numba, with an on-disk cache that follows the sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.extending import register_jitable

from pinn.specs.files.code import code_digest
from pinn.specs.files.write import cache_folder

_config: Any = numba.config


def _folder(function: Callable) -> str:
    """A folder of its own for each state of the code that a function calls or reads constants of.

    numba notices a change of the file that holds a compiled function, not of the others.
    """
    base = _config.CACHE_DIR or cache_folder()
    return str(Path(base) / f"simulator-{code_digest(function)[:16]}")


def compiled(function: Callable) -> Any:
    """Compile a function at its first call, or load what an earlier process compiled.

    It releases the interpreter lock, so that threads run simulations side by side. Without a
    writable cache folder every process compiles anew.
    """
    before, _config.CACHE_DIR = _config.CACHE_DIR, _folder(function)
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:
        return numba.njit(nogil=True, error_model="numpy")(function)
    finally:
        _config.CACHE_DIR = before


#: For functions that compiled functions call; from Python they are called as they are. They get no
#: wrappers for calls from outside, which would double the compiler's work.
inner = register_jitable(
    nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)
