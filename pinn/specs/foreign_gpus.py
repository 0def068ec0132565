"""GPU descriptions in other tools' layouts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pinn.errors import PinnError
from pinn.specs.gpu import GpuSpec
from pinn.specs.limits import MOST_DATASHEET, is_finite, written
from pinn.units import GIB, GIGA, TERA

#: Field of the layouts -> unit; the first that is there counts. ``mem``/``compute`` names are of
#: plain hardware tables, the ``Bw``/``TFlops`` names of BLIS's hardware_config.json.
_BANDWIDTH = {"memory_bandwidth_gb_s": GIGA, "BwPeakTBs": TERA, "BwEffTBs": TERA}
_COMPUTE = {"compute_tflops_fp16": TERA, "TFlopsPeak": TERA, "TFlopsEff": TERA}
_FP8 = {"compute_tflops_fp8": TERA, "TFlopsFP8": TERA}
_CAPACITY = {"memory_gb": GIB, "MemoryGiB": GIB}
#: FP8 runs at twice the bf16 rate on every chip that has it; more than this is a sparse figure.
_SPARSE_RATIO = 3.0

#: What an unknown chip is taken for where the file is silent: an Ampere card on PCIe, which has the
#: least of everything that is served on today.
_CONSERVATIVE = {
    "memory_bytes": 24 * GIB,
    "compute_capability": 8.0,
    "link_bandwidth_bytes_per_s": 32 * GIGA,
    "pcie_bandwidth_bytes_per_s": 32 * GIGA,
    "has_nvlink": False,
}
#: Dense bf16 FLOP/s of one SM, for the SM count of an unknown chip (A100: 312 T / 108), and L2
#: bytes per byte/s of memory bandwidth (A100-80GB: 40 MiB / 2.039 TB/s).
_FLOP_PER_S_AND_SM = 312 * TERA / 108
_L2_SECONDS = 40 * 2**20 / 2.039e12


def read_foreign_gpu(
    name: str, values: Mapping[str, Any], known: GpuSpec | None, source: str
) -> GpuSpec:
    """Read one GPU of a foreign hardware file.

    Two layouts: ``{memory_bandwidth_gb_s, compute_tflops_fp16, memory_gb, sm_count}``, and BLIS's
    ``{TFlopsPeak | TFlopsEff, TFlopsFP8, BwPeakTBs | BwEffTBs, MemoryGiB | memory_gb}``. What the
    file does not state comes from the known chip of that name, else from conservative estimates;
    the ``source`` of the result lists which fields.

    Args:
        name: The GPU's key in the file.
        values: Its entry.
        known: The datasheet of a chip of that name, if there is one.
        source: The file, for errors.

    Raises:
        PinnError: If neither the file nor a known chip gives a bandwidth or a compute rate.
    """
    stated: dict[str, Any] = {}
    for field, units in (
        ("memory_bandwidth_bytes_per_s", _BANDWIDTH),
        ("memory_bytes", _CAPACITY),
    ):
        value = _number(name, values, units, source)
        if value is not None:
            stated[field] = value
    sm_count = _number(name, values, {"sm_count": 1}, source)
    if sm_count is not None:
        stated["sm_count"] = max(1, int(sm_count))
    peaks = _peaks(name, values, source)
    if known is not None:
        return _overridden(known, stated, peaks, source)
    for field, layouts in (("bandwidth", _BANDWIDTH), ("compute rate", _COMPUTE)):
        if not any(key in values for key in layouts):
            raise PinnError(f"{source}: GPU {name} has no {field}: add one of {', '.join(layouts)}")
    return _estimated(name, stated, peaks, source)


def _number(
    name: str, values: Mapping[str, Any], units: Mapping[str, float], source: str
) -> float | None:
    for key, unit in units.items():
        if key in values:
            value = values[key]
            if not is_finite(value) or not 0 < value * unit <= MOST_DATASHEET:
                raise PinnError(
                    f"{source}: GPU {name}: {key} must be a positive number of that unit, got "
                    f"{written(value)}"
                )
            return value * unit
    return None


def _peaks(name: str, values: Mapping[str, Any], source: str) -> dict[str, float]:
    bf16 = _number(name, values, _COMPUTE, source)
    fp8 = _number(name, values, _FP8, source) if any(values.get(key) for key in _FP8) else None
    if bf16 and fp8 and fp8 > _SPARSE_RATIO * bf16:
        warnings.warn(
            f"{source}: GPU {name}: the FP8 rate is {fp8 / bf16:.1f} times the 16-bit one, which "
            "is a sparse figure: taking half",
            stacklevel=3,
        )
        fp8 /= 2
    found = {"bf16": bf16, "fp8": fp8}
    return {kind: value for kind, value in found.items() if value is not None}


def _overridden(
    known: GpuSpec, stated: Mapping[str, Any], peaks: Mapping[str, float], source: str
) -> GpuSpec:
    read = sorted([*stated, *(f"{kind} rate" for kind in peaks)])
    return replace(
        known,
        **stated,
        peak_flop_per_s={**known.peak_flop_per_s, **peaks},
        source=f"{', '.join(read) or 'nothing'} from {source}; the rest is {known.name}: "
        f"{known.source}",
    )


def _estimated(
    name: str, stated: Mapping[str, Any], peaks: Mapping[str, float], source: str
) -> GpuSpec:
    estimates = {
        **_CONSERVATIVE,
        "sm_count": max(1, round(peaks["bf16"] / _FLOP_PER_S_AND_SM)),
        "l2_bytes": _L2_SECONDS * stated["memory_bandwidth_bytes_per_s"],
    }
    if "fp8" in peaks:
        estimates["compute_capability"] = 8.9  # the least capability with FP8
    guessed = sorted(estimates.keys() - stated.keys())
    return GpuSpec(
        name=name,
        peak_flop_per_s=dict(peaks),
        source=f"{source}; estimated: {', '.join(guessed)}",
        **{**estimates, **stated},
    )
