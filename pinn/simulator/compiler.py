"""The compiler of the simulator: numba, with an on-disk cache that follows the sources."""

import gc
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import numba
from numba.core import typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager
from numba.extending import overload, register_jitable

from pinn.common.code import code_digest
from pinn.common.files import cache_folder

_config: Any = numba.config


class _Part(JITCodeLibrary):
    """Code that only other compiled code calls: it is optimized and translated within that alone.

    numba does both for every function by itself, with all that the function calls: a loop of a
    hundred functions would be compiled as often as it is deep.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002
        return 0

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Nothing: what is called from outside has the environments of its parts, see below."""


class _Whole(JITCodeLibrary):
    """Code that is called from outside, with all its parts, optimized once."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)

    def add_linking_library(self, library: Any) -> None:
        super().add_linking_library(library)
        for part in library._linking_libraries if isinstance(library, _Part) else ():
            if part not in self._linking_libraries:
                self.add_linking_library(part)


_PASSES: list[Any] = [
    untyped_passes.TranslateByteCode(),
    untyped_passes.FixupArgs(),
    untyped_passes.IRProcessing(),
    untyped_passes.GenericRewrites(),
    untyped_passes.ReconstructSSA(),
    typed_passes.NopythonTypeInference(),
    typed_passes.PreLowerStripPhis(),
    typed_passes.IRLegalization(),
    typed_passes.NativeLowering(),
    typed_passes.NoPythonBackend(),
]


class _Passes(PassManager):
    """The passes one after the other, without what numba checks and notes between two of them."""

    def run(self, state: Any) -> None:
        for step in _PASSES:
            step.run_pass(state)


def _pipeline(kind: type[JITCodeLibrary]) -> type[CompilerBase]:
    class Pipeline(CompilerBase):
        def __init__(self, typing: Any, target: Any, library: Any, *more: Any) -> None:
            if library is None:
                library = kind(target.codegen(), kind.__name__)
                library.enable_object_caching()
            super().__init__(typing, target, library, *more)

        def define_pipelines(self) -> list[PassManager]:
            return [_Passes(kind.__name__)]

        def compile_extra(self, function: Any) -> Any:
            enabled = gc.isenabled()
            gc.disable()
            try:
                return super().compile_extra(function)
            finally:
                if enabled:
                    gc.freeze()  # All there is counts as old, so that it is not looked
                    gc.unfreeze()  # through as soon as the collector goes on.
                    gc.enable()

    return Pipeline


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
    jit = partial(numba.njit, nogil=True, error_model="numpy", pipeline_class=_pipeline(_Whole))
    try:
        return jit(cache=True)(function)
    except RuntimeError:
        return jit()(function)
    finally:
        _config.CACHE_DIR = before


#: Of functions that compiled functions alone call. They get no wrappers for calls from outside.
_INNER: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": _pipeline(_Part),
}
#: For functions that compiled functions call; from Python they are called as they are.
inner = register_jitable(**_INNER)
#: What stands for a function of Python in compiled code, as ``numba.extending.overload``.
compiled_as: Any = partial(overload, jit_options=cast(Any, _INNER))


def compiled_inside(module: str) -> None:
    """Let compiled functions call every function that a module has defined so far."""
    for function in [*vars(sys.modules[module]).values()]:
        if isinstance(function, FunctionType) and function.__module__ == module:
            inner(function)
