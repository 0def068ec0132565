"""All measured kernels, read at once, and tables of communication between ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common.files import ReadReport
from pinn.kernels.hardware import Gpus
from pinn.kernels.mixer_operators import read_all_mixers
from pinn.kernels.tables import attention, table
from pinn.kernels.tables.gemm import GEMM_LAYOUT, MOE_LAYOUT, read_other_experts
from pinn.specs.gpu import GpuSpec, load_gpu

# Measured communication: all-reduce between tensor-parallel ranks, exchange between expert ranks.

#: Minimum ratio of an all-reduce's bandwidth to that with the best number of ranks. Below this
#: ratio, ranks are assumed to share a path, because two flows on one path halve each other's rate.
#: If every GPU has a separate link, a ring loads each link equally for any number of ranks
#: (Patarasuk and Yuan 2009), and in-switch reduction only helps larger numbers of ranks.
SHARED_PATH_SHARE = 0.5
EXCHANGE_OPERATIONS = ("all_gather", "reduce_scatter")


def _all_reduce_rules(gpu: GpuSpec, _: table.TableSource) -> table.Rules:
    return {
        "elements are not 16 bits wide": lambda r: r["dtype"] != "bfloat16",
        "launched individually, not from a CUDA graph": lambda r: (
            ~r["backend"].str.endswith("_graph")
        ),
        **table.NO_TIME,
        "below the floor": lambda r: r["seconds"] < _floor(r, gpu),
        f"outlier: over {table.SPIKE}x as long as with fewer and with more bytes": lambda r: (
            table.spikes(r, ("gpus",), "bytes")
        ),
        "ranks share a path on that machine: less than half the bandwidth of another number of "
        "ranks": _shared_path,
    }


def _fused_rules(gpu: GpuSpec, _: table.TableSource) -> table.Rules:
    return {
        "elements are not 16 bits wide": lambda r: r["dtype"] != "bfloat16",
        **table.NO_TIME,
        "below the floor": lambda r: r["seconds"] < _floor(r, gpu),
    }


def _shared_path(r: pd.DataFrame) -> np.ndarray:
    """Return True for rows with a number of ranks for which GPUs seem to share a link.

    The largest message then has a far lower bandwidth than with another number of ranks. Bandwidth
    is that of a link in a ring: 2 (n - 1) / n of the message, divided by the time.
    """
    largest = r.loc[r.groupby("gpus")["bytes"].idxmax()].set_index("gpus")
    ranks = largest.index.to_numpy(dtype=np.float64)
    ring = 2 * (ranks - 1) / ranks * largest["bytes"] / largest["seconds"]
    return r["gpus"].isin(ring.index[ring < SHARED_PATH_SHARE * ring.max()]).to_numpy()


def _floor(r: pd.DataFrame, gpu: GpuSpec) -> pd.Series:
    """Return the lower bound in seconds: a rank receives (n - 1) / n of the message on its link."""
    return r["bytes"] * (r["gpus"] - 1) / r["gpus"] / gpu.link_bandwidth_bytes_per_s


def _alone(r: pd.DataFrame) -> np.ndarray:
    return (r.groupby(["gpus", "bytes"])["operation"].transform("nunique") < 2).to_numpy()


def _exchange_rules(gpu: GpuSpec, _: table.TableSource) -> table.Rules:
    return {
        "neither gathers nor scatters": lambda r: ~r["operation"].isin(EXCHANGE_OPERATIONS),
        "elements are not 16 bits wide": lambda r: r["dtype"] != "half",
        **table.NO_TIME,
        "below the floor": lambda r: r["seconds"] < _floor(r, gpu),
        "one without the other": _alone,
    }


#: Table of all-reduces measured inside a CUDA graph, as in a serving step.
ALL_REDUCE_LAYOUT = table.layout("comm", "custom_allreduce_perf", _all_reduce_rules)
#: Table of all-reduces measured with the kernel that can also fuse a norm. The table does not state
#: whether a CUDA graph launched them.
FUSED_LAYOUT = replace(
    table.layout("comm", "custom_allreduce_perf", _fused_rules),
    columns={name: c for name, c in ALL_REDUCE_LAYOUT.columns.items() if name != "backend"},
    helpers=("dtype",),
)
#: Table of NCCL's all-gather and reduce-scatter inside one node: the sum of their seconds for the
#: ``bytes`` of all ranks' tokens. The report counts both summed rows. vLLM's default back end sends
#: tokens to the experts by all-gather, and results back by reduce-scatter
#: (vllm/distributed/device_communicators/all2all.py: AgRsAll2AllManager).
EXCHANGE_LAYOUT = table.layout(
    "comm",
    "nccl_perf",
    _exchange_rules,
    finished=lambda rows: (
        rows.groupby(["gpu", "gpus", "bytes", "source"])["seconds"].sum().reset_index()
    ),
)


def read_all_reduces(gpus: Gpus, systems: Path | None = None) -> table.Read:
    """Read measured all-reduces; the first table with a given GPU and number of ranks is used."""
    taken: dict[str, set[int]] = {}
    sources = (source for source in table.sources("all_reduce") if source.system in gpus)
    return table.together(_with_new_ranks(gpus[s.system], s, taken, systems) for s in sources)


def _with_new_ranks(
    gpu: GpuSpec, source: table.TableSource, taken: dict[str, set[int]], systems: Path | None
) -> table.ReadTable:
    """Read rows whose numbers of ranks are not yet in ``taken``, and add these to ``taken``."""
    known = taken.setdefault(gpu.name, set())
    rules: table.Rules = {
        "an earlier table covers this number of ranks": lambda r: r["gpus"].isin(known)
    }
    rows, report = table.refuse(*ALL_REDUCE_LAYOUT.read(gpu, source, systems), rules)
    known.update(rows["gpus"].unique())
    return rows, report


# All tables of the measured systems.

#: Layout of each type of table that has no separate reader.
_LAYOUTS = {
    "gemm": GEMM_LAYOUT, "moe": MOE_LAYOUT, "exchange": EXCHANGE_LAYOUT,
    "fused_all_reduce": FUSED_LAYOUT,
    "decode_attention": attention.DECODE_LAYOUT, "prefill_attention": attention.PREFILL_LAYOUT,
    "latent_decode": attention.LATENT_DECODE_LAYOUT,
    "latent_prefill": attention.LATENT_PREFILL_LAYOUT,
}  # fmt: skip


@dataclass(frozen=True)
class KernelTables:
    """Measured kernels by type, in SI units, with the columns of their readers.

    Attributes:
        mixers: Kernels of recurrent layers and sparse attention, by kernel type in
            ``timed_operators``.
        gpus: Datasheets of the measured GPUs, by the name in the ``gpu`` columns.
        reports: Numbers of rows read and refused, per file.
    """

    gemm: pd.DataFrame
    decode_attention: pd.DataFrame
    prefill_attention: pd.DataFrame
    moe: pd.DataFrame
    other_experts: pd.DataFrame
    all_reduce: pd.DataFrame
    fused_all_reduce: pd.DataFrame
    exchange: pd.DataFrame
    latent_decode: pd.DataFrame
    latent_prefill: pd.DataFrame
    gpus: Gpus
    mixers: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    reports: tuple[ReadReport, ...] = field(default=())


def read_kernel_tables(
    systems_gpus: Gpus | None = None, systems: Path | None = None
) -> KernelTables:
    """Read all tables of the given systems; all systems together take about three seconds.

    Args:
        systems_gpus: Datasheets by system name, such as ``h100_sxm``; a subset of ``SYSTEMS``. None
            for all of them, with the catalog's datasheets.
        systems: Folder of newer tables (``make kernel-tables``), of which the newest of each engine
            are read; None for the tables of the installed package.

    Raises:
        PinnError: If a file or a column is missing.
    """
    if systems_gpus is None:
        systems_gpus = {name: load_gpu(name) for name in table.SYSTEMS}
    gpus = {name: systems_gpus[name] for name in table.SYSTEMS if name in systems_gpus}
    read = {
        name: layout.read_all(table.sources(name), gpus, systems)
        for name, layout in _LAYOUTS.items()
    }
    read["other_experts"] = read_other_experts(gpus, systems)
    read["all_reduce"] = read_all_reduces(gpus, systems)
    names = (each.name for each in fields(KernelTables))
    mixers, mixer_reports = read_all_mixers(gpus, systems)
    return KernelTables(
        **{name: rows for name, (rows, _) in read.items()},
        gpus={gpu.name: gpu for gpu in gpus.values()},
        mixers=mixers,
        reports=(*(r for name in names if name in read for r in read[name][1]), *mixer_reports),
    )
