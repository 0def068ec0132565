"""All measured kernels, read at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from pinn.common.files import ReadReport
from pinn.kernels.mixer_operators import read_all_mixers
from pinn.kernels.tables import attention
from pinn.kernels.tables.communication import EXCHANGE_LAYOUT, read_all_reduces
from pinn.kernels.tables.gemm import GEMM_LAYOUT, MOE_LAYOUT, read_other_experts
from pinn.kernels.tables.table import DECODE_ATTENTION, EXCHANGE, LATENT, MOE, PRIMARY, SYSTEMS
from pinn.specs.gpu import GpuSpec, load_gpu


@dataclass(frozen=True)
class KernelTables:
    """Measured kernels by kind, in SI units; columns as the readers say.

    Attributes:
        mixers: Rows by operator of ``MIXER_OPERATORS``.
        gpus: The GPUs timed, by the name in the ``gpu`` columns.
        reports: What was read and refused, per file.
    """

    gemm: pd.DataFrame
    decode_attention: pd.DataFrame
    prefill_attention: pd.DataFrame
    moe: pd.DataFrame
    other_experts: pd.DataFrame
    all_reduce: pd.DataFrame
    exchange: pd.DataFrame
    latent_decode: pd.DataFrame
    latent_prefill: pd.DataFrame
    gpus: Mapping[str, GpuSpec]
    mixers: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    reports: tuple[ReadReport, ...] = field(default=())


def read_kernel_tables(systems_gpus: Mapping[str, GpuSpec] | None = None) -> KernelTables:
    """Read every declared table of the given systems; about three seconds for all of them.

    Args:
        systems_gpus: Datasheets by system name, such as ``h100_sxm``; a subset of ``SYSTEMS``. None
            for all of them, with the catalog's datasheets.

    Raises:
        PinnError: If a file or a column is missing.
    """
    if systems_gpus is None:
        systems_gpus = {name: load_gpu(name) for name in SYSTEMS}
    gpus = {name: systems_gpus[name] for name in SYSTEMS if name in systems_gpus}
    read: dict[str, tuple[pd.DataFrame, list[ReadReport]]] = {
        "gemm": GEMM_LAYOUT.read_all(PRIMARY, gpus),
        "decode_attention": attention.DECODE_LAYOUT.read_all(DECODE_ATTENTION, gpus),
        "prefill_attention": attention.PREFILL_LAYOUT.read_all(PRIMARY, gpus),
        "moe": MOE_LAYOUT.read_all(MOE, gpus),
        "other_experts": read_other_experts(gpus),
        "all_reduce": read_all_reduces(gpus),
        "exchange": EXCHANGE_LAYOUT.read_all(EXCHANGE, gpus),
        "latent_decode": attention.LATENT_DECODE_LAYOUT.read_all(LATENT, gpus),
        "latent_prefill": attention.LATENT_PREFILL_LAYOUT.read_all(LATENT, gpus),
    }
    mixers, mixer_reports = read_all_mixers(gpus)
    return KernelTables(
        **{name: rows for name, (rows, _) in read.items()},
        gpus={gpu.name: gpu for gpu in gpus.values()},
        mixers=mixers,
        reports=(*(r for _, reports in read.values() for r in reports), *mixer_reports),
    )
