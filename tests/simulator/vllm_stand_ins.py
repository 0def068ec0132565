"""A release of vLLM without a GPU: its scheduling code, and stand-ins for what that imports."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

_REAL = (
    "vllm.v1.core",
    "vllm.v1.request",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.utils.math_utils",
)
_PACKAGES = ("vllm", "vllm.v1", "vllm.utils")
_ABSENT = ("transformers", "cbor2", "zmq", "prometheus_client", "cloudpickle", "xxhash", "openai")


class _Nothing(int):
    """0 or False to whoever asks, whatever is called or looked up on it, and an empty context."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(self, *_: Any) -> None:
        """Nothing to tear down."""


class Config(SimpleNamespace):
    """Settings by name; those that were not given are off, and other configurations absent."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None if name.endswith("_config") else _Nothing()


def _member(_: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock()


class _Kind(type):
    """A class that has any member, as its objects have, or a constant that is empty."""

    __getattr__ = _member

    def __iter__(cls) -> Any:
        return iter(())


class _StandIn(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "envs":  # from vllm import envs
            return importlib.import_module("vllm.envs")
        if name.startswith("VLLM_"):  # a variable of the environment
            return None
        if name == "current_platform":  # none that has ways of its own
            return _Nothing()
        value = _Kind(name, (), {"__getattr__": _member}) if name[0].isupper() else MagicMock()
        setattr(self, name, value)
        return value


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, source: Path, real: Iterable[str], packages: Iterable[str]) -> None:
        self.source, self.real = source, (*_REAL, *real)
        self.packages = (*_PACKAGES, *packages)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        top = name.partition(".")[0]
        real = name == "vllm.v1.engine" or any(f"{name}.".startswith(f"{r}.") for r in self.real)
        if (top == "vllm" and not real) or top in _ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _StandIn(spec.name)
        if spec.name in self.packages:
            module.__path__ = [str(self.source / spec.name.replace(".", "/"))]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class Release:
    """Modules that the recorder takes from a release's unpacked wheel.

    Attributes:
        step: ``EngineCore.step``.
        queued_step: ``EngineCore.step_with_batch_queue``.
        runs_v2: Whether a dense model runs on the second model runner unless told otherwise.
        requests_name_eos: Whether a request is made with its end-of-sequence token.
    """

    def __init__(
        self,
        source: Path,
        hasher: Callable[[Any], bytes],
        real: Iterable[str] = (),
        packages: Iterable[str] = (),
    ) -> None:
        self.source = source
        sys.meta_path.insert(0, _StandIns(source, real, packages))
        import vllm._bc_linter as linter

        linter.bc_linter_include = lambda x: x
        import vllm.v1.core.sched.scheduler as synchronous
        import vllm.v1.request as request
        from vllm.v1.core import kv_cache_utils as utils
        from vllm.v1.core import single_type_kv_cache_manager as managers

        request.StructuredOutputRequest = SimpleNamespace(from_sampling_params=lambda _: None)
        request.ConstantList = lambda values: values
        request.length_from_prompt_token_ids_or_embeds = lambda ids, _: len(ids)
        synchronous.EventPublisherFactory = MagicMock()
        synchronous.record_function_or_nullcontext = lambda _: contextlib.nullcontext()
        utils.init_none_hash(hasher)
        getattr(managers, "register_all_kvcache_specs", lambda _: None)(None)
        self.step = self._function("v1/engine/core.py", "step")
        self.queued_step = self._function("v1/engine/core.py", "step_with_batch_queue")
        named = request.Request.__init__.__code__.co_varnames
        self.requests_name_eos = "eos_token_id" in named
        # ``VllmConfig.use_v2_model_runner``: first all dense models ran on it, then all.
        file = source / "vllm/config/vllm.py"
        config = file.read_text() if file.exists() else ""
        knows = "def use_v2_model_runner" in config
        some = "def _is_default_v2_model_runner_model" in config
        self.runs_v2 = knows and (not some or "or not model_config.is_moe" in config)

    def _tree(self, file: str) -> ast.Module:
        return ast.parse((self.source / "vllm" / file).read_text())

    def _function(self, file: str, name: str) -> Callable[..., Any]:
        """A method of a file's classes, by itself."""
        functions = (n for n in ast.walk(self._tree(file)) if isinstance(n, ast.FunctionDef))
        node = next(each for each in functions if each.name == name)
        node.decorator_list, node.returns = [], None
        for argument in node.args.args:
            argument.annotation = None
        scope: dict[str, Any] = {"Future": Future, "cast": cast, "ModelRunnerOutput": None}
        exec(compile(ast.Module([node], []), file, "exec"), scope)
        return scope[name]

    def batches_in_flight(self, config: Config) -> int:
        """``max_concurrent_batches``, of the configuration or of the executor."""
        file = "config/vllm.py"
        path = self.source / "vllm" / file
        if not path.exists() or "def max_concurrent_batches" not in path.read_text():
            alone = config.parallel_config.pipeline_parallel_size == 1
            file = f"v1/executor/{'uniproc' if alone else 'multiproc'}_executor.py"
        return self._function(file, "max_concurrent_batches")(config)

    def defaults(self, name: str) -> dict[str, Any]:
        """Defaults of ``SchedulerConfig``, ``CacheConfig`` or ``ParallelConfig`` by field."""
        body = next(
            node.body
            for node in ast.walk(self._tree(f"config/{name}.py"))
            if isinstance(node, ast.ClassDef) and node.name == f"{name.capitalize()}Config"
        )
        found: dict[str, Any] = {}
        for line in body:
            value = line.value if isinstance(line, ast.AnnAssign) else None
            if isinstance(value, ast.Call):  # Field(default=...)
                value = next((k.value for k in value.keywords if k.arg == "default"), None)
            if isinstance(value, ast.Constant) and isinstance(line.target, ast.Name):
                found[line.target.id] = value.value
        return found
