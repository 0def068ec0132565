"""What to rent for a load, and a page with sliders of a few servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.api.arguments import read_request, with_arguments
from pinn.api.flag_values import checked_flag
from pinn.api.requests import ExploreRequest, WorkersRequest, named
from pinn.common.screen import printed
from pinn.common.workers import Workers
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.planning.explore.grid import SIZES
from pinn.planning.explore.page import explore_page
from pinn.planning.plan import Plan, PlanRequest
from pinn.planning.planner import plan_load
from pinn.planning.report import choice_rows, print_plan, write_files
from pinn.simulator.workloads.load import LoadFlags
from pinn.specs.flags import flags_of
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PlannedFleet:
    """A plan with its table and files.

    Attributes:
        plan: Choices for a load, best first, and all else that plan.json has.
    """

    plan: Plan

    def table(self) -> pd.DataFrame:
        """A row per choice, in SI units, with every flag: what plan.csv holds."""
        import pandas as pd

        return pd.DataFrame(choice_rows(self.plan))

    def save(self, folder: str | Path) -> None:
        """Write plan.json, plan.csv, plan.html and its pictures."""
        write_files(self.plan, Path(folder))

    def print_report(self, folder: Path | None = None) -> None:
        """Print the plan, and the folder of its files where they were saved."""
        print_plan(self.plan, folder)

    def __str__(self) -> str:
        """Return what ``pinn plan`` prints."""
        return printed(self.print_report)


_SPECIFICATIONS = (ServingSpec, EngineSpec, LoadFlags)


@with_arguments(*_SPECIFICATIONS, request=(PlanRequest, WorkersRequest), deploys=True)
def plan(
    workload: str | Path | None = None,
    slo: str = "",
    model: str | Path | None = None,
    gpu: str | Path | Sequence[str | Path] | None = None,
    *,
    price: str | Mapping[str, float] = "",
    **given: object,
) -> PlannedFleet:
    """What to rent for a load, how to start it, and how sure that is, as ``pinn plan`` says.

    Args:
        workload: File of the load, as of :func:`pinn.simulate`; no closed loop. None where flags
            say it, such as ``input_len=1024, output_len=256``.
        slo: Limits, which are needed, such as ``"p99 ttft<=2s"`` or
            ``"ttft<=1s, tpot<=40ms for 95 %"``.
        model: Name, or path of a config.json or its folder.
        gpu: One or several GPUs that may be rented.
        price: Per GPU and hour, as a mapping or as text such as ``"H100=2.5 H200=3.2"``. [default:
            GPUs are counted]
        **given: All else, the engine's flags, which hold for all candidates, and the load's too.

    Raises:
        PinnError: If nothing fits or holds the limits, with what comes nearest.
    """
    gpus = ",".join(map(str, [gpu] if isinstance(gpu, str | Path) else gpu or ())) or None
    own = {"workload": workload, "slo": slo, "model": model, "gpu": gpus}
    given = {"workers": 1, **given}
    if "," in str(given.get("engine")) and isinstance(given["engine"], str):
        given["engine"] = given["engine"].split(",")
    where = {f.name: given.pop(f.name) for f in fields(WorkersRequest) if f.name in given}
    asked, flags = read_request(PlanRequest, given, *_SPECIFICATIONS, **own)
    place, _ = read_request(WorkersRequest, where)
    workers = Workers(place.backend, place.count, place.address, torch=False)
    return PlannedFleet(plan_load(asked, flags, _prices(price), workers))


def _prices(given: str | Mapping[str, float]) -> dict[str, float]:
    """Return what a GPU costs in an hour, by its full name.

    Raises:
        PinnError: If a price is not positive, or one GPU has two.
    """
    pairs: Iterable[tuple[str, object]]
    if isinstance(given, Mapping):
        pairs = given.items()
    else:
        parted = (part.partition("=") for part in given.replace(",", " ").split())
        pairs = [(name, value if equals else "") for name, equals, value in parted]
    found: dict[str, float] = {}
    for name, value in pairs:
        try:
            number = float(str(value))
        except ValueError:
            number = float("nan")
        if not 0 < number < float("inf"):
            told = f"{name}={value}" if value != "" else name
            raise PinnError(f"--price: cannot read {told!r}: write 'H100=2.5 H200=3.2'")
        gpu = load_gpu(name).name
        if found.setdefault(gpu, number) != number:
            raise PinnError(f"--price: {gpu} costs {found[gpu]:g} and {number:g}: give one price")
    return found


@with_arguments(ServingSpec, request=ExploreRequest, deploys=True)
def explore(
    out: str | Path,
    model: str | Path | None = None,
    gpu: str | Path | Sequence[str | Path] = (),
    *,
    tensor_parallel_size: int | str | Sequence[int] = SIZES,
    quantization: str | Sequence[str] = (),
    **given: object,
) -> int:
    """Write a page with sliders of a few servers, which needs no other file: ``pinn explore``.

    Args:
        out: Page to write.
        model: Name, or path of a config.json or its folder.
        gpu: Names, or paths of datasheets, to choose from.
        tensor_parallel_size: One or several to choose from.
        quantization: Number formats to choose from. [default: the checkpoint's own and fp8]
        **given: All else; the engine's flags are for all servers.

    Returns:
        How many servers the page has; those that do not start are named in it.

    Raises:
        PinnError: If something is unknown, no server starts, or the page cannot show one.
    """
    gpus = ",".join(map(str, [gpu] if isinstance(gpu, str | Path) else gpu or ())) or None
    asked, flags = read_request(ExploreRequest, given, ServingSpec, model=model, gpu=gpus)
    flags = named(asked.model, None) | flags
    model_name = flags.pop("model", None)
    if model_name is None or asked.gpu is None:
        raise PinnError("--model and --gpu are needed: 'pinn models' and 'pinn gpus' list them")
    if quantization:
        formats = quantization if isinstance(quantization, str) else ",".join(quantization)
        flags["precision"] = formats
    (size,) = (f for f in flags_of(ServingSpec) if f.name == "tensor_parallel_size")
    several = tensor_parallel_size
    listed = str(several).split(",") if isinstance(several, int | str) else several
    flags["tensor_parallel_size"] = [checked_flag(size, each) for each in listed]
    page = explore_page(str(model_name), asked.gpu.split(","), flags, asked.checkpoint)
    page.write(Path(out))
    return len(page.servers)
