"""Datasheets of GPUs, loaded by name from the catalog, or from files in several formats."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from pinn.common.documents import MOST_DATASHEET, is_finite, misfit, read_json
from pinn.common.files import data_folder, given_path
from pinn.errors import PinnError, printable, warn_user
from pinn.specs.other_vendors import refuse_other_vendor
from pinn.specs.precision import Precision
from pinn.units import GIB, GIGA, TERA

# Datasheet of a GPU: all that is known about the GPU without measurements.

#: Minimum plausible datasheet values in SI units. A smaller value was probably given in GB or GB/s.
_LEAST = {
    "memory_bandwidth_bytes_per_s": (1e9, "3.35 TB/s are 3.35e12"),
    "memory_bytes": (1e8, "80 GB are 8e10"),
    "sm_count": (1, "132"),
    "l2_bytes": (1e3, "50 MiB are 52428800"),
    "compute_capability": (1, "9.0"),
    "link_bandwidth_bytes_per_s": (1e7, "450 GB/s are 4.5e11"),
    "pcie_bandwidth_bytes_per_s": (1e7, "64 GB/s are 6.4e10"),
}
_LEAST_FLOP_PER_S = 1e9


@dataclass(frozen=True)
class GpuSpec:
    """A GPU's datasheet in SI units.

    Attributes:
        name: Canonical short name, such as ``H100-SXM``.
        memory_bandwidth_bytes_per_s: Peak bandwidth of the device memory.
        memory_bytes: Capacity of the device memory.
        peak_flop_per_s: Dense FLOP/s by tensor-core math (``bf16`` always; ``fp8``, ``int8``,
            ``fp4`` if the GPU has them). Rates with sparsity are not allowed.
        sm_count: Number of streaming multiprocessors.
        l2_bytes: Size of the last-level cache in bytes.
        compute_capability: CUDA compute capability, such as 9.0, which identifies the GPU
            generation.
        link_bandwidth_bytes_per_s: Bandwidth between GPUs of one node in one direction (NVLink,
            else PCIe).
        pcie_bandwidth_bytes_per_s: Bandwidth to the host in one direction.
        has_nvlink: Whether NVLink connects GPUs of one node.
        source: Publication that states the values.
    """

    name: str
    memory_bandwidth_bytes_per_s: float
    memory_bytes: float
    peak_flop_per_s: dict[str, float]
    sm_count: int
    l2_bytes: float
    compute_capability: float
    link_bandwidth_bytes_per_s: float
    pcie_bandwidth_bytes_per_s: float
    has_nvlink: bool
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))
        object.__setattr__(self, "source", printable(self.source, 2000))
        for name, (least, example) in _LEAST.items():
            value = getattr(self, name)
            if not least <= value <= MOST_DATASHEET:
                rule = f"{name} must be {least:g} to {MOST_DATASHEET:g} in SI units ({example})"
                raise misfit(f"GPU {self.name}: {rule}", value)
        peaks = self.peak_flop_per_s
        if not peaks.get("bf16", 0) >= 1:
            needs = "peak_flop_per_s needs a positive 'bf16' entry"
            raise PinnError(f"GPU {self.name}: {needs}, got {peaks!r:.200}")
        for kind, value in peaks.items():
            if value != 0 and not _LEAST_FLOP_PER_S <= value <= MOST_DATASHEET:
                rates = f"{_LEAST_FLOP_PER_S:g} to {MOST_DATASHEET:g} FLOP/s"
                rule = f"the {kind} rate must be 0 or {rates} (989 TFLOP/s is 9.89e14)"
                raise misfit(f"GPU {self.name}: {rule}", value)

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bandwidth_bytes_per_s, self.sm_count))

    def matmul_flop_per_s(self, weights: Precision, *, tf32: bool = False) -> float:
        """Return the peak dense FLOP/s of matrix products with weights of a number format.

        A GPU without tensor-core math for the format dequantizes the weights and multiplies at the
        bf16 rate (weight-only kernels such as Marlin; fp8 on Ampere). fp32 products run outside the
        tensor cores. With ``tf32``, they run at half the bf16 rate on GPUs from Ampere on (A100
        datasheet: 156 TFLOP/s in TF32, 312 in bf16).
        """
        bf16 = self.peak_flop_per_s["bf16"]
        if weights.math == "fp32":
            has_tf32 = tf32 and self.compute_capability >= 8.0
            return bf16 / 2 if has_tf32 else _fp32_flop_per_s(self)
        return self.peak_flop_per_s.get(weights.math) or bf16


#: FLOP/s of one multiprocessor in fp32, outside the tensor cores, from compute capability on. From
#: datasheets, in TFLOP/s: T4 8.1 with 40 multiprocessors, A100 19.5 with 108, A40 37.4 with 84,
#: L40S 91.6 with 142, H100 SXM 67 with 132, HGX B200 75 with 148, RTX PRO 6000 126 with 188.
_FP32_FLOP_PER_S = (
    (12.0, 0.67e12), (9.0, 0.507e12), (8.9, 0.645e12), (8.6, 0.445e12), (8.0, 0.18e12),
    (0.0, 0.2e12),
)  # fmt: skip


def _fp32_flop_per_s(gpu: GpuSpec) -> float:
    capability = gpu.compute_capability
    return gpu.sm_count * next(rate for since, rate in _FP32_FLOP_PER_S if capability >= since)


# Network between servers: bandwidth of a GPU's network adapter.

#: Port rates of network adapters in bit/s: 100 Gb/s, then HDR, NDR and XDR InfiniBand or equivalent
#: Ethernet (NVIDIA ConnectX-6, -7 and -8 datasheets). Each GPU is assumed to have one port.
PORT_BITS_PER_S = (100e9, 200e9, 400e9, 800e9)


def network_bytes_per_s(gpu: GpuSpec) -> float:
    """Return bytes/s per direction of the fastest network port that a GPU's PCIe link can fill.

    DGX A100 (PCIe 4.0) has 200 Gb/s for each GPU, DGX H100, H200 and B200 (PCIe 5.0) have 400 Gb/s
    (their datasheets). Switches and protocol overheads are ignored.
    """
    fitting = [port / 8 for port in PORT_BITS_PER_S if port / 8 <= gpu.pcie_bandwidth_bytes_per_s]
    return max(fitting, default=PORT_BITS_PER_S[0] / 8)


# Datasheets of GPUs in the file formats of other tools.

#: Fields in other tools' formats, in order of precedence, with factors to SI units. Names with
#: ``mem`` and ``compute`` are from generic hardware tables; names with ``Bw`` and ``TFlops`` are
#: from BLIS's hardware_config.json.
_BANDWIDTH = {"memory_bandwidth_gb_s": GIGA, "BwPeakTBs": TERA, "BwEffTBs": TERA}
_COMPUTE = {"compute_tflops_fp16": TERA, "TFlopsPeak": TERA, "TFlopsEff": TERA}
_FP8 = {"compute_tflops_fp8": TERA, "TFlopsFP8": TERA}
_FIELDS: dict[str, dict[str, float]] = {
    "memory_bandwidth_bytes_per_s": _BANDWIDTH,
    "memory_bytes": {"memory_gb": GIB, "MemoryGiB": GIB},
    "sm_count": {"sm_count": 1},
}
#: Maximum plausible ratio of FP8 FLOP/s to bf16 FLOP/s. A larger ratio probably means that the FP8
#: rate assumes sparsity.
_SPARSE_RATIO = 3.0

#: Assumed values of an unknown GPU if its file lacks them: an Ampere card on PCIe, with the lowest
#: capabilities of GPUs used for serving.
_CONSERVATIVE = {
    "memory_bytes": 24 * GIB,
    "compute_capability": 8.0,
    "link_bandwidth_bytes_per_s": 32 * GIGA,
    "pcie_bandwidth_bytes_per_s": 32 * GIGA,
    "has_nvlink": False,
}
#: Ratios for estimating values of an unknown GPU. The number of SMs is the dense bf16 FLOP/s
#: divided by an A100's FLOP/s per SM (312 T / 108). The L2 size is the bandwidth multiplied by an
#: A100-80GB's L2 bytes per byte/s (40 MiB / 2.039 TB/s).
_FLOP_PER_S_AND_SM = 312 * TERA / 108
_L2_SECONDS = 40 * 2**20 / 2.039e12


def read_foreign_gpu(
    name: str, values: Mapping[str, object], known: GpuSpec | None, source: str
) -> GpuSpec:
    """Return the datasheet of one GPU from another tool's hardware file.

    Two layouts are known: ``{memory_bandwidth_gb_s, compute_tflops_fp16, memory_gb, sm_count}``,
    and BLIS's ``{TFlopsPeak | TFlopsEff, TFlopsFP8, BwPeakTBs | BwEffTBs, MemoryGiB | memory_gb}``.
    Values that the file lacks are taken from the known GPU with this name, or else estimated
    conservatively; the ``source`` of the result lists these estimates.

    Args:
        name: Key of the GPU in the file.
        values: The GPU's values: the object under its key in the file.
        known: Datasheet of a known GPU with this name; None if there is none.
        source: Name of the file, for error messages.

    Raises:
        PinnError: If neither the file nor a known GPU specifies a bandwidth or a compute rate.
    """
    found = {key: _number(name, values, units, source) for key, units in _FIELDS.items()}
    stated: dict[str, Any] = {key: value for key, value in found.items() if value is not None}
    if "sm_count" in stated:
        stated["sm_count"] = max(1, int(stated["sm_count"]))
    peaks = _peaks(name, values, source)
    if known is not None:
        return _overridden(known, stated, peaks, source)
    for field, layouts in (("bandwidth", _BANDWIDTH), ("compute rate", _COMPUTE)):
        if not any(key in values for key in layouts):
            raise PinnError(f"{source}: GPU {name} has no {field}: add one of {', '.join(layouts)}")
    return _estimated(name, stated, peaks, source)


def _number(
    name: str, values: Mapping[str, object], units: Mapping[str, float], source: str
) -> float | None:
    for key, unit in units.items():
        if key in values:
            value = values[key]
            if not is_finite(value) or not 0 < value * unit <= MOST_DATASHEET:
                rule = f"{key} must be a positive number in the unit that its name states"
                raise misfit(f"{source}: GPU {name}: {rule}", value)
            return value * unit
    return None


def _peaks(name: str, values: Mapping[str, object], source: str) -> dict[str, float]:
    bf16 = _number(name, values, _COMPUTE, source)
    fp8 = _number(name, values, _FP8, source) if any(values.get(key) for key in _FP8) else None
    if bf16 and fp8 and fp8 > _SPARSE_RATIO * bf16:
        ratio = fp8 / bf16
        warn_user(
            f"{source}: the FP8 rate of GPU {name} is {ratio:.1f} times the 16-bit rate, so it is "
            f"probably the rate with sparsity; half of this rate is used"
        )
        fp8 /= 2
    found = {"bf16": bf16, "fp8": fp8}
    return {kind: value for kind, value in found.items() if value is not None}


def _overridden(
    known: GpuSpec, stated: Mapping[str, Any], peaks: Mapping[str, float], source: str
) -> GpuSpec:
    read = ", ".join(sorted([*stated, *(f"{kind} rate" for kind in peaks)])) or "nothing"
    said = f"{read} from {source}; all other values are from {known.name}: {known.source}"
    rates = {**known.peak_flop_per_s, **peaks}
    return replace(known, **stated, peak_flop_per_s=rates, source=said)


def _estimated(
    name: str, stated: Mapping[str, Any], peaks: Mapping[str, float], source: str
) -> GpuSpec:
    estimates = {
        **_CONSERVATIVE,
        "sm_count": max(1, round(peaks["bf16"] / _FLOP_PER_S_AND_SM)),
        "l2_bytes": _L2_SECONDS * stated["memory_bandwidth_bytes_per_s"],
    }
    if "fp8" in peaks:
        estimates["compute_capability"] = 8.9  # lowest compute capability of GPUs with FP8 math
    guessed = ", ".join(sorted(estimates.keys() - stated.keys()))
    said = f"{source}; estimated: {guessed}"
    return GpuSpec(name=name, peak_flop_per_s=dict(peaks), source=said, **{**estimates, **stated})


# Loading of GPUs by name or file: ``load_gpu`` and ``list_gpus``.

_NUMBERS = tuple(f.name for f in fields(GpuSpec) if f.type in ("float", "int"))


def load_gpu(name_or_path: str | Path) -> GpuSpec:
    """Return the datasheet of a GPU, given its name or the path of a JSON file.

    Args:
        name_or_path: A name or alias, with any capitalization and punctuation (``H100``,
            ``h100_sxm``); or the path of a JSON file in the layout of ``data/gpus`` or in one of
            the layouts of ``read_foreign_gpu``. For a file of several GPUs, append ``#NAME``.

    Raises:
        PinnError: If the GPU is unknown, or its file is malformed or lacks a bandwidth.
    """
    text = str(name_or_path)
    name, _, entry = text.partition("#")
    path = given_path(name)
    if name.endswith(".json") or path.is_file():
        return _load_file(path, entry or None)
    gpu = find_gpu(text)
    if gpu is None:
        refuse_other_vendor(text)
        several = text.split(",")
        if len(several) > 1 and all(find_gpu(each.strip()) for each in several):
            raise PinnError(f"--gpu takes one GPU in this command, got {text!r}: give one GPU")
        *others, last = _nearest_gpus(text)
        raise PinnError(
            f"the GPU {text!r} is unknown: did you mean {', '.join(others)} or {last}? 'pinn gpus' "
            "lists all names; or give the path of a datasheet's JSON file"
        )
    return gpu


def list_gpus() -> list[str]:
    """Return the names of the GPUs in the catalog."""
    return sorted(_catalogued(path).name for path in set(_known().values()))


def find_gpu(name: str) -> GpuSpec | None:
    """Return the datasheet of a known GPU by name or alias; None for an unknown name."""
    path = _known().get(_plain(name))
    return None if path is None else _catalogued(path)


def _nearest_gpus(text: str, count: int = 3) -> list[str]:
    """Return the names of known GPUs whose names or aliases are most similar to a string."""
    likeness = dict[str, float]()
    for alias, path in _known().items():
        name = _catalogued(path).name
        ratio = difflib.SequenceMatcher(None, _plain(text), alias).ratio()
        likeness[name] = max(ratio, likeness.get(name, 0.0))
    return sorted(likeness, key=lambda name: (-likeness[name], name))[:count]


def gpu_aliases(gpu: GpuSpec) -> tuple[str, ...]:
    """Return the aliases of a GPU in the catalog; an empty tuple for a user's own GPU."""
    if find_gpu(gpu.name) != gpu:
        return ()
    return tuple(read_json(_known()[_plain(gpu.name)])["aliases"])


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _known() -> dict[str, Path]:
    """Map each name and alias of a GPU in the catalog to the path of its datasheet."""
    found: dict[str, Path] = {}
    read = {path: read_json(path) for path in sorted(data_folder("gpus").glob("*.json"))}
    for path, values in read.items():
        for name in (values.get("name", path.stem), *values.get("aliases", ())):
            other = found.setdefault(_plain(name), path)
            if other != path:
                raise PinnError(
                    f"{path}: the name {name!r} is already used in {other.name}: use another name"
                )
    return found


@cache
def _catalogued(path: Path) -> GpuSpec:
    return _read_own(read_json(path), path)


def _load_file(path: Path, entry: str | None) -> GpuSpec:
    values = read_json(path)
    if not isinstance(values, Mapping):
        raise PinnError(f"{path}: the file of a GPU must be a JSON object, got {values!r:.60}")
    if "memory_bandwidth_bytes_per_s" in values or "peak_flop_per_s" in values:
        found = _read_own(values, path)
        refuse_other_vendor(found.name, found.source)
        return found
    nested = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    if entry is None and len(nested) == 1:
        entry = next(iter(nested))
    if entry is None or entry not in nested:
        held = (", ".join(nested) or "no GPU") + (f", not {entry}" if entry else "")
        raise PinnError(f"{path} has {held}, expected one GPU: give {path}#NAME to choose a GPU")
    refuse_other_vendor(entry)
    return read_foreign_gpu(entry, nested[entry], find_gpu(entry), str(path))


def _read_own(values: Mapping[str, Any], path: Path) -> GpuSpec:
    wanted = {f.name for f in fields(GpuSpec)}
    missing, extra = wanted - values.keys(), values.keys() - wanted - {"aliases"}
    if missing or extra:
        what = f"lacks {', '.join(sorted(missing))}" if missing else "has an unknown field"
        more = f": {', '.join(sorted(extra))}" if extra else ""
        expected = ", ".join(sorted(wanted))
        raise PinnError(f"{path}: the GPU {what}{more}: give exactly the fields {expected}")
    peaks = values["peak_flop_per_s"]
    numbers = {name: values[name] for name in _NUMBERS}
    if not isinstance(peaks, Mapping):
        raise PinnError(f"{path}: peak_flop_per_s must map bf16, fp8 ... to FLOP/s, got {peaks!r}")
    for name, value in {**numbers, **peaks}.items():
        if not is_finite(value):
            raise misfit(f"{path}: {name} must be a number in SI units", value)
    for name in ("name", "source"):
        if not isinstance(values[name], str):
            raise misfit(f"{path}: {name} must be text", values[name])
    if not isinstance(values["has_nvlink"], bool):
        raise misfit(f"{path}: has_nvlink must be true or false", values["has_nvlink"])
    return GpuSpec(**{name: values[name] for name in wanted})
