"""All measured kernels, read at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from pinn.common.files import ReadReport
from pinn.kernels.mixer_operators import read_all_mixers
from pinn.kernels.tables.attention import read_all_attention, read_all_latent
from pinn.kernels.tables.communication import read_all_communication
from pinn.kernels.tables.gemm import read_all_gemm, read_all_moe, read_other_experts
from pinn.kernels.tables.table import SYSTEMS
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


def read_kernel_tables(
    systems_gpus: Mapping[str, GpuSpec] | None = None, systems: Path | None = None
) -> KernelTables:
    """Read every declared table of the given systems; about three seconds for all of them.

    Args:
        systems_gpus: Datasheets by system name, such as ``h100_sxm``; a subset of ``SYSTEMS``. None
            for all of them, with the catalog's datasheets.
        systems: The ``systems`` folder of aiconfigurator-core; None for the installed package's.

    Raises:
        PinnError: If a file or a column is missing.
    """
    if systems_gpus is None:
        systems_gpus = {name: load_gpu(name) for name in SYSTEMS}
    gpus = {name: systems_gpus[name] for name in SYSTEMS if name in systems_gpus}
    gemm, gemm_reports = read_all_gemm(gpus, systems)
    decode, prefill, attention_reports = read_all_attention(gpus, systems)
    moe, moe_reports = read_all_moe(gpus, systems)
    other_experts, other_reports = read_other_experts(gpus, systems)
    reduce, exchange, communication_reports = read_all_communication(gpus, systems)
    latent_decode, latent_prefill, latent_reports = read_all_latent(gpus, systems)
    mixers, mixer_reports = read_all_mixers(gpus, systems)
    return KernelTables(
        gemm=gemm,
        decode_attention=decode,
        prefill_attention=prefill,
        moe=moe,
        other_experts=other_experts,
        all_reduce=reduce,
        exchange=exchange,
        latent_decode=latent_decode,
        latent_prefill=latent_prefill,
        gpus={gpu.name: gpu for gpu in gpus.values()},
        mixers=mixers,
        reports=(
            *gemm_reports,
            *attention_reports,
            *moe_reports,
            *other_reports,
            *communication_reports,
            *latent_reports,
            *mixer_reports,
        ),
    )
