"""Cache rules of a vLLM release: DeepSeek-V4's, sparse attention's format, blocks of states.

``hybrid_block_size`` and ``sparse_format`` run the release's own functions by themselves.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock


def fields(kind: type) -> set[str]:
    """Return the names of a specification's fields."""
    return {each.name for each in dataclasses.fields(kind)}


def compressed_layers(kinds: Any, torch: Any, ratio: int, config: Any) -> list[Any]:
    """Return the caches of one layer of DeepSeek-V4, whose keys stand for ``ratio`` tokens each.

    They are the window (sparse_swa.py: DeepseekV4SWACache), compressed keys and those of an indexer
    (deepseek_v4/attention.py), and the vectors of both that are still being summed
    (compressor.py: CompressorStateCache).
    """
    form, size = config.cache_config.cache_dtype, config.cache_config.block_size
    common = {"num_kv_heads": 1, "alignment": 576}
    packed = {"cache_dtype_str": form, "model_version": "deepseek_v4", "dtype": torch.uint8}
    packed |= {"head_size": 512}
    if "state_content_bytes" in fields(kinds.MLAAttentionSpec):
        packed["state_content_bytes"] = 584
    found = [kinds.SlidingWindowMLASpec(block_size=64, sliding_window=128, **common, **packed)]
    if not ratio:
        return found
    named = "compress_ratio" if "compress_ratio" in fields(kinds.MLAAttentionSpec) else ""
    share = {named or "tokens_per_state": ratio}
    found.append(kinds.MLAAttentionSpec(block_size=size, **common, **packed, **share))
    overlap, held = (2, 4) if ratio == 4 else (1, 8)
    sums = {"block_size": held, "sliding_window": overlap * ratio, "dtype": torch.float32}
    widths = [512, 128] if ratio == 4 else [512]
    found += [
        kinds.SlidingWindowMLASpec(head_size=2 * overlap * width, **common, **sums)
        for width in widths
    ]
    if ratio == 4:
        index = {"block_size": size, "head_size": 132, "dtype": torch.uint8}
        found.append(kinds.MLAAttentionSpec(**index, **common, **share))
    return found


def hybrid_block_size(source: Path, kinds: Any, multiple: int) -> Callable[[Any, Any], None]:
    """Return a function that sizes blocks for the states of a configuration and model class.

    ``multiple`` is the number of tokens of which the layers require blocks to be multiples.

    models/config.py: HybridAttentionMambaModelConfig.verify_and_update_config up to 0.19.1, then
    platforms/interface.py: Platform._align_hybrid_block_size.
    """
    file, kind, name = "platforms/interface.py", "Platform", "_align_hybrid_block_size"
    if f"def {name}" not in (source / "vllm" / file).read_text():
        file, kind = "model_executor/models/config.py", "HybridAttentionMambaModelConfig"
        name = "verify_and_update_config"
    node = _method((source / "vllm" / file).read_text(), kind, name)

    def run(config: Any, model: Any) -> None:
        scope = _scope(kinds, model, multiple)
        exec(compile(ast.Module([node], []), file, "exec"), scope)
        backend = SimpleNamespace(
            get_supported_kernel_block_sizes=lambda: [16], customize_spec=lambda spec: spec
        )
        whose = SimpleNamespace(
            _find_non_ssm_backends=lambda _: [backend], _get_indexer_block_alignment=lambda _: None
        )
        scope[name](*((whose, config, backend) if kind == "Platform" else (whose, config)))

    return run


def sparse_format(source: Path, asked: str) -> str:
    """Return the format of DeepSeek-V3.2's cache on Hopper, by the format asked for.

    models/config.py: DeepseekV32ForCausalLM; FlashMLA's kernels then take any 8 bits as packed
    (layers/attention/mla_attention.py: MLAAttention.__init__).
    """
    text = (source / "vllm/model_executor/models/config.py").read_text()
    scope: dict[str, Any] = {"logger": MagicMock()}
    name = "verify_and_update_config"
    node = _method(text, "DeepseekV32ForCausalLM", name)
    exec(compile(ast.Module([node], []), "config.py", "exec"), scope)
    cache = SimpleNamespace(cache_dtype=asked)
    model = SimpleNamespace(hf_config=SimpleNamespace(index_topk=2048))
    scope[name](None, SimpleNamespace(cache_config=cache, model_config=model))
    return "fp8_ds_mla" if cache.cache_dtype.startswith("fp8") else cache.cache_dtype


def _method(text: str, kind: str, name: str) -> ast.FunctionDef:
    classes = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef))
    body = next(each.body for each in classes if each.name == kind)
    node = next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)
    node.decorator_list, node.returns = [], None
    for argument in node.args.args:
        argument.annotation = None
    return node


def _scope(kinds: Any, model: Any, multiple: int) -> dict[str, Any]:
    """Return the names that the function uses from its file or by its imports."""
    registry = SimpleNamespace(resolve_model_cls=lambda *_, **__: (model, None))
    found: dict[str, Any] = {
        "ModelRegistry": registry, "cdiv": lambda a, b: -(-a // b), "lcm": math.lcm,
        "FullAttentionSpec": kinds.FullAttentionSpec, "MambaSpec": kinds.MambaSpec,
        "MLAAttentionSpec": getattr(kinds, "MLAAttentionSpec", None), "logger": MagicMock(),
        "MambaModelConfig": SimpleNamespace(verify_and_update_config=lambda _: None),
        "envs": SimpleNamespace(VLLM_USE_V1=True), "STR_DTYPE_TO_TORCH_DTYPE": {},
        "current_platform": SimpleNamespace(is_device_capability_family=lambda _: False),
        "AttentionBackendEnum": SimpleNamespace(CUTLASS_MLA="", FLASHINFER=""),
    }  # fmt: skip
    import vllm.config.vllm as configured
    import vllm.model_executor.models as models
    import vllm.v1.attention.backend as backends

    models.ModelRegistry = registry
    backends.MultipleOf = type("MultipleOf", (), {})
    configured.set_current_vllm_config = lambda _: contextlib.nullcontext()
    import vllm.model_executor.layers.mamba.abstract as mamba

    mamba.get_mamba_prefill_checkpoint_alignment = lambda _: multiple
    return found
