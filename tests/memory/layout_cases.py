"""Models and flags whose KV cache layouts in vLLM were recorded, layer by layer on one GPU.

A layer is a tuple: its kind, how many there are, and what it keeps.

- ``full``: KV heads and their width, of keys and values alike or of both together by two;
  ``window``: those and the window.
- ``latent`` and ``sparse``: elements per token.
- ``index``: bytes of an indexer's key.
- ``compressed``: tokens that a key of DeepSeek-V4 stands for.
- ``state``: elements of each part of a state, bytes of each element, and the mixer.
"""

from __future__ import annotations

from typing import Any

GIB = 1 << 30
#: vLLM's name of the format in which sparse attention and DeepSeek-V4 keep 8 bits.
PACKED = "fp8_ds_mla"


def _case(
    model: str, layers: list[tuple[Any, ...]], gpu: str = "H200", gib: int = 40, **flags: Any
) -> dict[str, Any]:
    flags = {"tp": 1, "max_model_len": 16_384, "max_num_batched_tokens": 8192, **flags}
    return {"model": model, "gpu": gpu, "memory": gib * GIB, "flags": flags, "layers": layers}


def _gated_delta(layers: int, tp: int) -> tuple[Any, ...]:
    """Return Qwen3-Next's layers: 32 value and 16 key heads of 128 x 128, 4-tap convolution."""
    channels = (2 * 16 * 128 + 32 * 128) // tp
    return ("state", layers, (3 * channels, 32 // tp * 128 * 128), (2, 2), "gated_delta")


_GPT_OSS = [("window", 12, 8, 64, 128), ("full", 12, 8, 64)]
_GEMMA = [("window", 52, 16, 128, 1024), ("full", 10, 16, 128)]
_NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
_HYBRID = [_gated_delta(36, 2), ("full", 12, 1, 256)]
_GRANITE = [
    ("state", 36, (3 * (128 * 64 + 2 * 128), 128 * 64 * 128), (2, 2), "mamba2"),
    ("full", 4, 8, 128),
]  # fmt: skip
_V3, _V32 = "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2"
_V4 = [("compressed", 2, 0), ("compressed", 21, 4), ("compressed", 20, 128)]

CASES = {
    "dense": _case("meta-llama/Llama-3.1-8B", [("full", 32, 8, 128)]),
    "dense on two": _case("meta-llama/Llama-3.1-8B", [("full", 32, 4, 128)], tp=2),
    "dense fp8": _case(
        "meta-llama/Llama-3.1-8B", [("full", 32, 8, 128)], kv_cache_dtype="fp8",
        max_model_len=100_000,
    ),
    "gpt-oss": _case("openai/gpt-oss-20b", _GPT_OSS),
    "gpt-oss, long": _case(
        "openai/gpt-oss-20b", _GPT_OSS, max_model_len=131_072, max_num_batched_tokens=2048
    ),
    "gpt-oss, short": _case("openai/gpt-oss-20b", _GPT_OSS, max_model_len=4096),
    "gemma-3": _case("google/gemma-3-27b-it", _GEMMA, max_model_len=32_768),
    "gemma-3, long": _case(
        "google/gemma-3-27b-it", _GEMMA, max_model_len=131_072, max_num_batched_tokens=4096, gib=60
    ),
    "gemma-4": _case(
        "google/gemma-4-26B-A4B", [("window", 25, 8, 256, 1024), ("full", 5, 2, 512)],
        max_model_len=32_768,
    ),
    "mimo-v2": _case(
        "XiaomiMiMo/MiMo-V2-Flash", [("window", 39, 8, 160, 128), ("full", 9, 4, 160)],
        max_model_len=32_768, kv_cache_dtype="auto",
    ),
    "searched": _case(
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1", [("full", 49, 8, 128)], max_model_len=32_768
    ),
    "windows alone": _case(
        "mistralai/Mistral-7B-v0.1", [("window", 32, 8, 128, 4096)], max_model_len=32_768,
        max_num_batched_tokens=2048,
    ),
    "hybrid": _case(_NEXT, _HYBRID, tp=2, max_model_len=65_536),
    "hybrid without prefixes": _case(
        _NEXT, _HYBRID, tp=2, max_model_len=65_536, enable_prefix_caching=False
    ),
    "hybrid of Mamba-2": _case("ibm-granite/granite-4.0-h-small", _GRANITE),
    "latent": _case(_V3, [("latent", 61, 576)], tp=8, block_size=64),
    "latent fp8": _case(
        _V3, [("latent", 61, 576)], tp=8, block_size=64, kv_cache_dtype="fp8"
    ),
    "sparse": _case(
        _V32, [("sparse", 61, 576), ("index", 61, 132)], tp=8, block_size=64
    ),
    "sparse fp8": _case(
        _V32, [("sparse", 61, 576), ("index", 61, 132)], tp=8, block_size=64,
        kv_cache_dtype="fp8",
    ),
    "compressed": _case(
        "deepseek-ai/DeepSeek-V4-Flash", _V4, gpu="B300", tp=4, max_model_len=131_072,
        block_size=256,
    ),
    "compressed, long": _case(
        "deepseek-ai/DeepSeek-V4-Flash", _V4, gpu="B300", tp=4, max_model_len=1_048_576,
        block_size=256, max_num_batched_tokens=16_384, gib=100,
    ),
}  # fmt: skip
