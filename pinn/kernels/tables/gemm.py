"""Tables of matrix multiplications, experts' too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.common.files import ReadReport
from pinn.engines.kernel_choice import CUTLASS, TRITON
from pinn.kernels.tables.table import (
    FORMATS,
    MOE,
    OTHER_EXPERTS,
    PRIMARY,
    SPIKE,
    TableSource,
    bytes_per_element,
    flop_rate,
    read_table,
    refuse,
    spikes,
)
from pinn.kernels.tables.work import Work, experts_hit_balanced, gemm_work, moe_work
from pinn.specs.gpu import GpuSpec
from pinn.units import MILLISECOND

# Measured matrix multiplications.

COLUMNS = ("gemm_dtype", "m", "n", "k", "latency")
#: A chip's cache serves a timing loop whose matrices are this many times smaller: the loop cycles
#: through several copies. Seen on L40S and RTX PRO 6000, whose jumps lie at a sixth of the cache.
COPIES_IN_LOOP = 5.5


def read_gemm(
    gpu: GpuSpec, source: TableSource, systems: Path | None = None
) -> tuple[pd.DataFrame, ReadReport]:
    """GEMM rows of one table.

    Returns:
        Columns gpu, precision, m, n, k, seconds, source; and the report.

    Raises:
        PinnError: If the file or a column is missing.
    """
    table, report = read_table(source, "gemm", "gemm_perf", COLUMNS, systems)
    rows = pd.DataFrame(
        {
            "gpu": gpu.name,
            "precision": table["gemm_dtype"].map(FORMATS),
            "m": table["m"],
            "n": table["n"],
            "k": table["k"],
            "seconds": table["latency"] * MILLISECOND,
            "source": report.source,
        }
    )

    def unused(r: pd.DataFrame) -> np.ndarray:
        known = r["precision"].notna()
        if source.formats is not None:
            known &= r["precision"].isin([FORMATS[f] for f in source.formats])
        return ~known.to_numpy()

    def memory_seconds(r: pd.DataFrame) -> np.ndarray:
        work = gemm_work(r["m"], r["n"], r["k"], bytes_per_element(r["precision"]))
        return work.read_bytes / gpu.memory_bandwidth_bytes_per_s

    def warm(r: pd.DataFrame) -> np.ndarray:
        weights = (r["n"] * r["k"]).to_numpy() * bytes_per_element(r["precision"])
        fits = weights <= gpu.l2_bytes / COPIES_IN_LOOP
        return fits & (memory_seconds(r) > 0.55 * r["seconds"].to_numpy())

    def below_floor(r: pd.DataFrame) -> np.ndarray:
        work = gemm_work(r["m"], r["n"], r["k"], bytes_per_element(r["precision"]))
        compute = work.flop / flop_rate(gpu, r["precision"])
        return r["seconds"].to_numpy() < np.maximum(memory_seconds(r), compute)

    return refuse(
        rows,
        report,
        [
            ("format not used", unused),
            (
                "fp8_block is launch-bound (no row below 55 us): fp8 stands in",
                lambda r: r["precision"] == "fp8_block",
            ),
            ("no time", lambda r: ~(r["seconds"] > 0)),
            ("one row takes over 1.5 x as long as two: an odd kernel", _odd_single_row),
            # 3.6 % of B200's fp8 rows.
            (
                f"a spike: over {SPIKE} x as long as with fewer and with more rows",
                lambda r: spikes(r, ("precision", "n", "k"), "m"),
            ),
            ("read from a warm cache", warm),
            ("below the floor", below_floor),
        ],
    )


def _odd_single_row(rows: pd.DataFrame) -> np.ndarray:
    """Rows of m = 1 that padding to m = 2 would beat by far (fp8 on Blackwell: 2.5 x)."""
    shape = ["precision", "n", "k"]
    two = rows[rows["m"] == 2].groupby(shape)["seconds"].min().rename("two")
    beside = rows[[*shape, "m", "seconds"]].join(two, on=shape)
    return ((beside["m"] == 1) & (beside["seconds"] > 1.5 * beside["two"])).to_numpy()


def read_all_gemm(
    gpus: dict[str, GpuSpec], systems: Path | None = None
) -> tuple[pd.DataFrame, list[ReadReport]]:
    """GEMM rows of every declared table whose system is in ``gpus`` (keyed by system name)."""
    parts = [read_gemm(gpus[s.system], s, systems) for s in PRIMARY if s.system in gpus]
    return pd.concat([p[0] for p in parts], ignore_index=True), [p[1] for p in parts]


# Measured mixture-of-experts layers: routed experts of one rank, gathering and scattering too.

MOE_COLUMNS = (
    "moe_dtype",
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
    "distribution",
    "kernel_source",
    "latency",
)
NUMBERS = [
    "tokens",
    "hidden",
    "width",
    "experts",
    "top_k",
    "tensor_parallel",
    "expert_parallel",
    "matrices",
]
SHAPE = ["precision", "hidden", "width", "experts", "top_k"]
#: (hidden, width) of experts without a gate: Nemotron 3's squared ReLU. Elsewhere a gate is timed.
UNGATED = {(2688, 1856), (2048, 5120), (1024, 2688), (4096, 2688)}
#: A shape with more of its rows below the bound does not reach the experts that it says (an
#: assumption).
FALSE_ROUTING_SHARE = 0.05
#: Pairs of token and expert per expert from which popular experts matter more than missed ones:
#: there the two routings of the tables cross.
CROWDED_PAIRS = 16.0
#: Above this share of the time, weights that came from the cache spoil a row (assumption).
WARM_SHARE = 0.3


def matrices(hidden: pd.Series, width: pd.Series) -> Float[np.ndarray, " rows"]:
    """Weight matrices of one expert: 3, or 2 without a gate."""
    pairs = zip(hidden.tolist(), width.tolist(), strict=True)
    return np.array([2.0 if pair in UNGATED else 3.0 for pair in pairs])


def _work(r: pd.DataFrame) -> Work:
    value = {name: r[name].to_numpy(dtype=np.float64) for name in NUMBERS}
    hit = experts_hit_balanced(
        value["tokens"], value["experts"], value["top_k"], value["expert_parallel"]
    )
    return moe_work(value, hit, bytes_per_element(r["precision"]))


def _served_routing(r: pd.DataFrame) -> np.ndarray:
    """Which routing of the tables is like a server's at each size.

    Few tokens hit about as many experts as drawing at random does, which balanced routing bounds;
    with many tokens every expert is hit and the popular ones set the time.
    """
    pairs = r["tokens"] * r["top_k"] / r["experts"]
    return np.where(pairs < CROWDED_PAIRS, "balanced", "power_law_1.01")


def _below_bound(r: pd.DataFrame, gpu: GpuSpec) -> np.ndarray:
    """Rows faster than reading the experts that balanced routing hits, or computing the pairs."""
    work = _work(r)
    memory = work.read_bytes / gpu.memory_bandwidth_bytes_per_s
    compute = work.flop / flop_rate(gpu, r["precision"])
    return r["seconds"].to_numpy() < np.maximum(memory, compute)


def _false_routing(r: pd.DataFrame, gpu: GpuSpec) -> np.ndarray:
    """Rows of shapes whose router hits fewer experts than balanced (DeepSeek-V3's grouped one)."""
    share = pd.Series(_below_bound(r, gpu), index=r.index).groupby([r[c] for c in SHAPE])
    return (share.transform("mean") > FALSE_ROUTING_SHARE).to_numpy()


def _warm(r: pd.DataFrame, gpu: GpuSpec) -> np.ndarray:
    work = _work(r)
    memory = work.read_bytes / gpu.memory_bandwidth_bytes_per_s
    return (work.read_bytes <= gpu.l2_bytes) & (memory > WARM_SHARE * r["seconds"].to_numpy())


def read_moe(
    gpu: GpuSpec, source: TableSource, systems: Path | None = None
) -> tuple[pd.DataFrame, ReadReport]:
    """Rows of one table whose routing is like a server's.

    With expert parallelism the tokens are all of the group's; a rank holds ``experts /
    expert_parallel`` whole experts and drops the pairs that go elsewhere.

    Returns:
        Columns gpu, precision, tokens, hidden, width, experts, top_k, tensor_parallel,
        expert_parallel, matrices, seconds, kernel, source; and the report.

    Raises:
        PinnError: If the file or a column is missing.
    """
    table, report = read_table(source, "moe", "moe_perf", MOE_COLUMNS, systems)
    rows = pd.DataFrame(
        {
            "gpu": gpu.name,
            "precision": table["moe_dtype"].map(FORMATS),
            "tokens": table["num_tokens"],
            "hidden": table["hidden_size"],
            "width": table["inter_size"],
            "experts": table["num_experts"],
            "top_k": table["topk"],
            "tensor_parallel": table["moe_tp_size"],
            "expert_parallel": table["moe_ep_size"],
            "matrices": matrices(table["hidden_size"], table["inter_size"]),
            "seconds": table["latency"] * MILLISECOND,
            "kernel": table["kernel_source"],
            "source": report.source,
            "distribution": table["distribution"],
            "used": table["moe_dtype"].isin(source.formats or tuple(FORMATS)),
        }
    )
    hopper = gpu.compute_capability == 9.0
    blackwell = 10.0 <= gpu.compute_capability < 11.0
    rows, report = refuse(
        rows,
        report,
        [
            ("format not used", lambda r: ~r["used"]),
            ("kernel not used", lambda r: ~r["kernel"].str.contains(source.kernel, regex=False)),
            ("routing unlike a server's", lambda r: r["distribution"] != _served_routing(r)),
            (
                "expert parallelism of another engine",
                lambda r: source.whole_experts_only & (r["expert_parallel"] > 1),
            ),
            (
                "modelopt fp8 on Hopper, three to six times its bound: fp8_block stands in",
                lambda r: hopper & r["kernel"].str.startswith("vllm_modeloptfp8moe"),
            ),
            (
                "CUTLASS experts on Blackwell: the fall-back for activations other than SwiGLU",
                lambda r: blackwell & r["kernel"].str.contains("flashinfer_cutlass"),
            ),
            (
                "SGLang's own call of the kernel, on shapes that vLLM's table has",
                lambda r: r["kernel"].str.startswith("sglang_mxfp4_flashinfer"),
            ),
            ("no time", lambda r: ~(r["seconds"] > 0)),
            ("read from a warm cache", lambda r: _warm(r, gpu)),
            ("shape that routes to fewer experts than it says", lambda r: _false_routing(r, gpu)),
            ("below the floor", lambda r: _below_bound(r, gpu)),
        ],
    )
    return rows.drop(columns=["distribution", "used"]), report


def read_all_moe(
    gpus: dict[str, GpuSpec], systems: Path | None = None
) -> tuple[pd.DataFrame, list[ReadReport]]:
    """MoE rows of every declared table whose system is in ``gpus``; earlier tables win."""
    parts = [read_moe(gpus[s.system], s, systems) for s in MOE if s.system in gpus]
    return pd.concat([p[0] for p in parts], ignore_index=True), [p[1] for p in parts]


def read_other_experts(
    gpus: dict[str, GpuSpec], systems: Path | None = None
) -> tuple[pd.DataFrame, list[ReadReport]]:
    """Rows of kernels that an engine picks in some releases or under some flags.

    Returns:
        Columns as of :func:`read_moe` and ``kernels``, ``CUTLASS`` or ``TRITON``; and the reports.
    """
    parts = [read_moe(gpus[s.system], s, systems) for s in OTHER_EXPERTS if s.system in gpus]
    if not parts:
        columns = [*dict.fromkeys([*NUMBERS, *SHAPE, "gpu", "seconds", "kernel", "kernels"])]
        return pd.DataFrame(columns=columns), []
    rows = pd.concat([p[0] for p in parts], ignore_index=True)
    cutlass = rows["kernel"].str.contains("cutlass")
    return rows.assign(kernels=np.where(cutlass, CUTLASS, TRITON)), [p[1] for p in parts]
