"""The compiler of the simulator: numba, with an on-disk cache that follows the sources."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.extending import register_jitable

_config: Any = numba.config


def _cache_folder() -> str:
    """A folder of its own for each state of the sources.

    numba notices a change of the file that holds a compiled function, not of the files it calls,
    so the name of the folder holds a hash of them all.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    base = _config.CACHE_DIR or Path(user) / "pinn"
    return str(Path(base) / f"simulator-{digest.hexdigest()[:16]}")


_CACHE_FOLDER = _cache_folder()


def compiled(function: Callable) -> Any:
    """Compile a function at its first call, or load what an earlier process compiled.

    It releases the interpreter lock, so that threads run simulations side by side. Without a
    writable cache folder every process compiles anew.
    """
    before, _config.CACHE_DIR = _config.CACHE_DIR, _CACHE_FOLDER
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
