"""Tables of measured matrix products, and of measured experts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.engines.kernel_choice import CUTLASS, TRITON
from pinn.kernels.hardware import Gpus
from pinn.kernels.tables import table
from pinn.kernels.tables.work import Work, experts_hit_balanced, gemm_work, moe_work
from pinn.specs.gpu import GpuSpec

# Measured matrix multiplications.

#: Number of copies of a product's matrices through which the measurement cycles. If all copies fit
#: in a GPU's L2 cache, the matrices are read from the cache. On L40S and RTX PRO 6000, times jump
#: at a sixth of the cache.
COPIES_IN_LOOP = 5.5
#: Maximum time to read weights from memory, as a share of the measured time. ``_GEMM_WARM_SHARE``:
#: for matrix products. ``WARM_SHARE``: for experts. Rows with larger shares are excluded, because
#: their weights may have been read from the L2 cache (assumptions).
_GEMM_WARM_SHARE, WARM_SHARE = 0.55, 0.3


def _gemm_work(r: pd.DataFrame) -> Work:
    m, n, k = (r[name].to_numpy() for name in ("m", "n", "k"))
    return gemm_work(m, n, k, table.bytes_per_element(r["precision"]))


def _gemm_rules(gpu: GpuSpec, source: table.TableSource) -> table.Rules:
    cached = gpu.l2_bytes / COPIES_IN_LOOP
    return {
        **table.unused_format("precision", source),
        "fp8_block rows are launch-bound (none below 55 us): fp8 rows are used instead": lambda r: (
            r["precision"] == "fp8_block"
        ),
        **table.NO_TIME,
        "outlier: one matrix row takes over 1.5x as long as two": _odd_single_row,
        # The next rule excludes 3.6 % of B200's fp8 rows.
        f"outlier: over {table.SPIKE}x as long as with fewer and with more rows": lambda r: (
            table.spikes(r, ("precision", "n", "k"), "m")
        ),
        "read from a warm cache": lambda r: table.warm(
            r, _gemm_work(r), gpu, cached, _GEMM_WARM_SHARE
        ),
        "below the floor": lambda r: table.below_floor(
            r, _gemm_work(r), gpu, table.flop_rate(gpu, r["precision"])
        ),
    }


def _odd_single_row(rows: pd.DataFrame) -> np.ndarray:
    """Return True for rows with m = 1 that are far slower than m = 2 (fp8 on Blackwell: 2.5 x)."""
    shape = ["precision", "n", "k"]
    two = rows[rows["m"] == 2].groupby(shape)["seconds"].min().rename("two")
    beside = rows[[*shape, "m", "seconds"]].join(two, on=shape)
    return ((beside["m"] == 1) & (beside["seconds"] > 1.5 * beside["two"])).to_numpy()


GEMM_LAYOUT = table.layout("gemm", "gemm_perf", _gemm_rules)


# Measured mixture-of-experts layers: routed experts of one rank, with gather and scatter of tokens.

SHAPE = ["precision", "hidden", "width", "experts", "top_k"]
NUMBERS = ["tokens", *SHAPE[1:], "tensor_parallel", "expert_parallel", "matrices"]
#: Sizes (hidden, width) of experts without a gate: Nemotron 3's, which use squared ReLU. All other
#: experts have a gate.
UNGATED = {(2688, 1856), (2048, 5120), (1024, 2688), (4096, 2688)}
#: If more than this share of a shape's rows is faster than the lower bound, the shape is assumed to
#: use fewer experts than its rows state.
FALSE_ROUTING_SHARE = 0.05


def matrices(hidden: pd.Series, width: pd.Series) -> Float[np.ndarray, " rows"]:
    """Return the number of weight matrices per expert: 3, or 2 without a gate."""
    pairs = zip(hidden.tolist(), width.tolist(), strict=True)
    return np.array([2.0 if pair in UNGATED else 3.0 for pair in pairs])


def _moe_work(r: pd.DataFrame) -> Work:
    value = {name: r[name].to_numpy(dtype=np.float64) for name in NUMBERS}
    routed = (value[name] for name in ("tokens", "experts", "top_k", "expert_parallel"))
    return moe_work(value, experts_hit_balanced(*routed), table.bytes_per_element(r["precision"]))


def _below_bound(r: pd.DataFrame, gpu: GpuSpec) -> np.ndarray:
    """Return True for rows faster than the time to compute, or to read evenly used experts."""
    return table.below_floor(r, _moe_work(r), gpu, table.flop_rate(gpu, r["precision"]))


def _false_routing(r: pd.DataFrame, gpu: GpuSpec) -> np.ndarray:
    """Return True for rows of shapes that seem to use fewer experts than balanced routing would."""
    share = pd.Series(_below_bound(r, gpu), index=r.index).groupby([r[c] for c in SHAPE])
    return (share.transform("mean") > FALSE_ROUTING_SHARE).to_numpy()


def _named(start: str) -> Callable[[pd.DataFrame], "pd.Series[bool]"]:
    """Return a rule that matches rows of kernels whose names begin with ``start``."""
    return lambda r: r["kernel"].str.startswith(start)


def _moe_rules(gpu: GpuSpec, source: table.TableSource) -> table.Rules:
    hopper = gpu.compute_capability == 9.0
    blackwell = 10.0 <= gpu.compute_capability < 11.0
    return {
        **table.unused_format("precision", source),
        "kernel not used": lambda r: ~r["kernel"].str.contains(source.kernel, regex=False),
        "uneven routing": lambda r: r["distribution"] != "balanced",
        "expert parallelism of another engine": lambda r: (
            source.whole_experts_only & (r["expert_parallel"] > 1)
        ),
        "modelopt fp8 on Hopper, at 3 to 6 times its roofline bound: fp8_block is used "
        "instead": lambda r: hopper & _named("vllm_modeloptfp8moe")(r),
        "CUTLASS experts on Blackwell: used only for activations other than SwiGLU": lambda r: (
            blackwell & r["kernel"].str.contains("flashinfer_cutlass")
        ),
        "kernel as called by SGLang, for shapes that vLLM's table covers": _named(
            "sglang_mxfp4_flashinfer"
        ),
        **table.NO_TIME,
        "read from a warm cache": lambda r: table.warm(
            r, _moe_work(r), gpu, gpu.l2_bytes, WARM_SHARE
        ),
        "tokens are routed to fewer experts than the row states": lambda r: _false_routing(r, gpu),
        "below the floor": lambda r: _below_bound(r, gpu),
    }


#: Table of measured expert layers, with tokens distributed evenly over experts. With expert
#: parallelism, ``tokens`` counts the tokens of the whole group. A rank has ``experts /
#: expert_parallel`` whole experts and drops the (token, expert) pairs of other ranks.
MOE_LAYOUT = table.layout(
    "moe",
    "moe_perf",
    _moe_rules,
    added=lambda rows: rows.assign(matrices=matrices(rows["hidden"], rows["width"])),
)


def read_other_experts(gpus: Gpus, systems: Path | None = None) -> table.Read:
    """Read measured expert kernels that an engine selects in some releases or with some flags.

    Returns:
        Table with the columns of ``MOE_LAYOUT`` and ``kernels`` (``CUTLASS`` or ``TRITON``), and
        reports on the files.
    """
    rows, reports = MOE_LAYOUT.read_all(table.sources("other_experts"), gpus, systems)
    if not reports:
        columns = [*dict.fromkeys([*NUMBERS, *SHAPE, "gpu", "seconds", "kernel", "kernels"])]
        return pd.DataFrame(columns=columns), []
    cutlass = rows["kernel"].str.contains("cutlass")
    return rows.assign(kernels=np.where(cutlass, CUTLASS, TRITON)), reports
