"""Models and GPUs that are known by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pinn.api.arguments import read_request, with_arguments
from pinn.api.score_requests import NamesRequest
from pinn.common.files import find_checkpoint
from pinn.common.screen import PrintedResult, printed, say
from pinn.errors import PinnError
from pinn.specs import catalog, model
from pinn.specs.gpu import GpuSpec, list_gpus, load_gpu
from pinn.units import GIB, GIGA, TERA

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class KnownModels(PrintedResult):
    """Models that are known by name.

    Attributes:
        names: Full names, in order.
    """

    names: tuple[str, ...]

    def mixers(self) -> dict[str, str]:
        """Return each model's types of attention or recurrent layers as a string, by model name."""
        return {name: model.mixer_names(catalog.load_model(name)) for name in self.names}

    def show(self, mixers: bool = False) -> None:
        """Print the names, one per line; ``mixers`` adds types of attention or recurrent layers."""
        for name, kinds in (self.mixers() if mixers else dict.fromkeys(self.names, "")).items():
            if kinds:
                say(f"{name:52}  {kinds}")
            else:
                print(name)

    def to_json(self) -> list[str]:
        """Return the names as a JSON list."""
        return list(self.names)

    def __str__(self) -> str:
        """Return the text that ``pinn models`` prints."""
        return printed(self.show)


@with_arguments(request=NamesRequest)
def models(contains: str = "", **given: object) -> KnownModels:
    """List the models that are known by name, as ``pinn models`` does.

    >>> models("qwen3-32b-fp8").names
    ('Qwen/Qwen3-32B-FP8', 'Qwen/Qwen3-32B-FP8-Static-PerTensor')

    Args:
        contains: Text that names must contain; case is ignored. Empty for all names.
        **given: No other arguments are accepted.

    Raises:
        PinnError: If no name contains the text.
    """
    asked, _ = read_request(NamesRequest, given, contains=contains)
    names = [name for name in catalog.list_models() if asked.contains.lower() in name.lower()]
    if not names:
        raise _nothing("models", contains, "give the path of a config.json for any other model")
    return KnownModels(tuple(names))


#: Explanation of the columns of the GPU table.
_COLUMNS = (
    "GiB, TB/s: memory size and bandwidth. bf16, fp8, fp4: dense TFLOP/s. link: GPU-to-GPU "
    "bandwidth, one direction. measured: types of training data from this GPU; if none (-), "
    "predictions are extrapolated."
)


@dataclass(frozen=True, repr=False)
class KnownGpus(PrintedResult):
    """GPUs that are known by name.

    Attributes:
        specs: Datasheets in SI units, in the order of their names.
        measured: Type of training data by GPU; predictions for a GPU without training data are
            extrapolated from other GPUs.
    """

    specs: tuple[GpuSpec, ...]
    measured: Mapping[str, str]

    def table(self) -> pd.DataFrame:
        """Return a table of datasheets with one row per GPU, in SI units."""
        import pandas as pd

        return pd.DataFrame(self.to_json())

    def show(self, sources: bool = False) -> None:
        """Print the datasheets; with ``sources`` also the source of each datasheet."""
        print(
            f"{'gpu':25}{'GiB':>5}{'TB/s':>6}{'bf16':>6}{'fp8':>6}{'fp4':>6}{'SMs':>5}"
            f"{'link GB/s':>11}{'PCIe GB/s':>11}  measured"
        )
        for gpu in self.specs:
            print(f"{_line(gpu)}  {self.measured.get(gpu.name, '-')}")
            if sources:
                say(f"  {gpu.source}")
        say(_COLUMNS)

    def to_json(self) -> list[dict[str, object]]:
        """Return each datasheet in SI units, with the type of training data on the GPU."""
        return [asdict(gpu) | {"measured": self.measured.get(gpu.name, "-")} for gpu in self.specs]

    def __str__(self) -> str:
        """Return the text that ``pinn gpus`` prints."""
        return printed(self.show)


@with_arguments(request=NamesRequest)
def gpus(contains: str = "", **given: object) -> KnownGpus:
    """List the GPUs that are known by name, as ``pinn gpus`` does.

    >>> [gpu.name for gpu in gpus("h100-p").specs]
    ['H100-PCIe']

    Args:
        contains: Text that names must contain; case is ignored. Empty for all names.
        **given: No other arguments are accepted.

    Raises:
        PinnError: If no name contains the text.
    """
    from pinn.surrogate.uncertainty.distance import measured_gpus

    asked, _ = read_request(NamesRequest, given, contains=contains)
    names = [name for name in list_gpus() if asked.contains.lower() in name.lower()]
    if not names:
        raise _nothing(
            "gpus",
            contains,
            "give the path of a datasheet's JSON file for any other GPU",
        )
    return KnownGpus(tuple(map(load_gpu, names)), measured_gpus(find_checkpoint(None)))


def _nothing(command: str, contains: str, others: str) -> PinnError:
    all_of_them = f"list all names with 'pinn {command}', or {others}"
    return PinnError(f"no known name contains {contains!r:.80}: {all_of_them}")


def _line(gpu: GpuSpec) -> str:
    flop_per_s = (gpu.peak_flop_per_s.get(kind) for kind in ("bf16", "fp8", "fp4"))
    peaks = "".join(f"{peak / TERA:6.0f}" if peak else f"{'-':>6}" for peak in flop_per_s)
    return (
        f"{gpu.name:25}{gpu.memory_bytes / GIB:5.0f}"
        f"{gpu.memory_bandwidth_bytes_per_s / TERA:6.2f}{peaks}{gpu.sm_count:5}"
        f"{gpu.link_bandwidth_bytes_per_s / GIGA:11.0f}"
        f"{gpu.pcie_bandwidth_bytes_per_s / GIGA:11.0f}"
    )
