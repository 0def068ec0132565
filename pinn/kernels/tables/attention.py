"""Tables of measured attention kernels, including latent attention (MLA)."""

import numpy as np
import pandas as pd

from pinn.kernels.tables import table
from pinn.kernels.tables.work import Work, decode_work, latent_prefill_work, prefill_work
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import LatentAttentionSpec

# Measured attention over ordinary key and value heads, in decodes and in new prompts.

#: Maximum time to read keys and values from memory, as a share of the measured time. Rows with
#: larger shares are excluded, because their keys and values may have been read from the L2 cache
#: (an assumption).
WARM_SHARE = 0.2
#: A kernel is assumed to read a part of its working set from the L2 cache if the working set is at
#: most this many times the size of the cache.
CACHE_MARGIN = 1.1


def _decode_work(r: pd.DataFrame) -> Work:
    names = ("sequences", "context_tokens", "heads", "kv_heads", "head_dim", "window")
    sizes = {name: r[name].to_numpy() for name in names}
    return decode_work(**sizes, kv_bytes=table.bytes_per_element(r["kv_precision"]))


def _prefill_work(r: pd.DataFrame) -> Work:
    names = ("sequences", "tokens", "heads", "kv_heads", "head_dim", "window")
    return prefill_work(*(r[name].to_numpy() for name in names))


def _fastest_flop_per_s(gpu: GpuSpec) -> float:
    return max(gpu.peak_flop_per_s["bf16"], gpu.peak_flop_per_s.get("fp8", 0.0))


def _decode_rules(gpu: GpuSpec, source: table.TableSource) -> table.Rules:
    above, cached = source.ungrouped_heads_above, CACHE_MARGIN * gpu.l2_bytes
    rate = _fastest_flop_per_s(gpu)
    return {
        **table.unused_format("kv_precision", source),
        **table.NO_TIME,
        "heads that vLLM's table has": lambda r: (
            above is not None and (r["kv_heads"] < r["heads"]) | (r["heads"] <= above)
        ),
        "keys and values are read from a warm cache": lambda r: table.warm(
            r, _decode_work(r), gpu, cached, WARM_SHARE
        ),
        "below the floor": lambda r: table.below_floor(r, _decode_work(r), gpu, rate),
    }


def _prefill_rules(gpu: GpuSpec, source: table.TableSource) -> table.Rules:
    rate = _fastest_flop_per_s(gpu)
    return {
        **table.unused_format("kv_precision", source),
        **table.NO_TIME,
        "after cached tokens": lambda r: r["cached_tokens"] != 0,
        "below the floor": lambda r: table.below_floor(r, _prefill_work(r), gpu, rate),
    }


#: Table of measured decode attention. ``context_tokens`` includes the new token; a ``window`` of 0
#: means full attention. The measurement repeats each kernel on the same data, so keys and values
#: that fit in the last-level cache are read from there. In a server, all other layers run between
#: two reads of the same keys. Rows whose times may differ from a server's for this reason are
#: refused.
DECODE_LAYOUT = table.layout(
    "attention",
    "generation_attention_perf",
    _decode_rules,
    added=lambda rows: rows.assign(context_tokens=rows["cached_tokens"] + rows["tokens"]),
)
#: Table of measured prefill attention of ``sequences`` new prompts of ``tokens`` tokens each.
PREFILL_LAYOUT = table.layout("attention", "context_attention_perf", _prefill_rules)


# Measured multi-head latent attention (MLA): whole modules of DeepSeek-V3's shape.
#
# A row's time covers the projections, the attention and everything in between, including launches
# that a CUDA graph would hide. The time of decode attention, ``core_seconds``, is the difference
# from the same module at the shortest context. For prompts, there is no such module. Their
# projections, whose times are known, are subtracted when the attention is fitted.

#: DeepSeek-V3's latent attention (sizes from its config.json), the only measured shape. A rank has
#: ``num_heads`` heads.
SHAPE = LatentAttentionSpec(128, 1536, 512, 128, 64, 128)
HIDDEN_SIZE = 7168
_MODULE = ["kv_precision", "gemm_precision", "heads", "sequences"]
_RULES: table.Rules = {
    "shape is not DeepSeek-V3's": lambda r: r["model"] != "deepseek-ai/DeepSeek-V3",
    "projections not in bf16": lambda r: r["gemm_precision"] != "bf16",
    **table.NO_TIME,
}
#: Kernel that vLLM selects by default for prompts, on Hopper and on Blackwell. TRT-LLM's ragged
#: kernel runs only if queries are quantized (``use_prefill_query_quantization``, not by default).
#: Rows of all other kernels have prompts so short that vLLM computes them as decodes, over
#: compressed keys.
PROMPT_KERNEL = "FLASH_ATTN"


def _with_core(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the column ``core_seconds``: time minus that of the shortest context."""
    first = rows.sort_values("context_tokens").groupby(_MODULE)["seconds"].transform("first")
    return rows.assign(core_seconds=rows["seconds"] - first)


def _latent_floor(r: pd.DataFrame, gpu: GpuSpec) -> np.ndarray:
    """Return the lower bound in seconds: the attention's FLOP at the GPU's peak bf16 FLOP/s."""
    sequences, tokens, heads = (r[name].to_numpy() for name in ("sequences", "tokens", "heads"))
    sizes = (sequences, tokens, 0.0, heads, SHAPE.head_dim, SHAPE.v_head_dim)
    return latent_prefill_work(*sizes).flop / gpu.peak_flop_per_s["bf16"]


LATENT_DECODE_LAYOUT = table.layout(
    "mla", "mla_generation_module_perf", lambda _, __: _RULES, finished=_with_core
)
#: Table of measured MLA modules in new prompts.
LATENT_PREFILL_LAYOUT = table.layout(
    "mla",
    "mla_context_module_perf",
    lambda gpu, _: {
        **_RULES,
        "not the kernel that vLLM chooses for prompts of this length by default": lambda r: (
            r["kernel"] != PROMPT_KERNEL
        ),
        "below the floor": lambda r: r["seconds"] < _latent_floor(r, gpu),
    },
)
