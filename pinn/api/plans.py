"""What to rent for a load, and a page with sliders of a few servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.api.arguments import read_request, with_arguments
from pinn.api.requests import ExploreRequest, named
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
from pinn.specs.flags import FlagValue
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

    def __str__(self) -> str:
        """What ``pinn plan`` prints."""
        return printed(print_plan, self.plan, None)


_SPECIFICATIONS = (ServingSpec, EngineSpec, LoadFlags)


@with_arguments(*_SPECIFICATIONS, request=PlanRequest, deploys=True)
def plan(
    workload: str | Path | None = None,
    slo: str = "",
    model: str | Path | None = None,
    gpu: str | Path | Sequence[str | Path] = (),
    *,
    prices: Mapping[str, float] | None = None,
    workers: int = 1,
    **given: FlagValue,
) -> PlannedFleet:
    """What to rent for a load, how to start it, and how sure that is, as ``pinn plan`` says.

    Args:
        workload: File of the load, as of :func:`pinn.simulate`; no closed loop. None where flags
            say it, such as ``input_len=1024, output_len=256``.
        slo: Limits, which are needed, such as ``"p99 ttft<=2s"`` or
            ``"ttft<=1s, tpot<=40ms for 95 %"``.
        model: Name, or path of a config.json or its folder.
        gpu: One or several GPUs that may be rented.
        prices: Per GPU and hour. [default: GPUs are counted]
        workers: Processes; with more than 1, call it below ``if __name__ == "__main__"``.
        **given: All else, the engine's flags, which hold for all candidates, and the load's too.

    Raises:
        PinnError: If nothing fits or holds the limits, with what comes nearest.
    """
    gpus = ",".join(map(str, [gpu] if isinstance(gpu, str | Path) else gpu)) or None
    own = {"workload": workload, "slo": slo, "model": model, "gpu": gpus}
    asked, flags = read_request(PlanRequest, given, *_SPECIFICATIONS, **own)
    by_name = {load_gpu(name).name: price for name, price in (prices or {}).items()}
    return PlannedFleet(plan_load(asked, flags, by_name, Workers(count=workers, torch=False)))


@with_arguments(ServingSpec, request=ExploreRequest, deploys=True)
def explore(
    out: str | Path,
    model: str | Path | None = None,
    gpus: Sequence[str | Path] = (),
    *,
    tensor_parallel_sizes: Sequence[int] = SIZES,
    formats: Sequence[str] = (),
    **given: object,
) -> int:
    """Write a page with sliders of a few servers, which needs no other file: ``pinn explore``.

    Args:
        out: Page to write.
        model: Name, or path of a config.json or its folder.
        gpus: Names, or paths of datasheets, to choose from.
        tensor_parallel_sizes: To choose from; not with ``tensor_parallel_size``.
        formats: Number formats to choose from. [default: the checkpoint's own and fp8]
        **given: All else; the engine's flags are for all servers.

    Returns:
        How many servers the page has; those that do not start are named in it.

    Raises:
        PinnError: If something is unknown, no server starts, or the page cannot show one.
    """
    own = {"model": model, "gpus": None}
    asked, flags = read_request(ExploreRequest, given, ServingSpec, **own)
    flags |= named(asked.model, None)
    if "model" not in flags or not gpus:
        raise PinnError("a page needs a model and gpus, such as 'Llama-3.1-8B', ['H100', 'H200']")
    one = flags.get("tensor_parallel_size")
    flags["tensor_parallel_size"] = list(tensor_parallel_sizes) if one is None else [one]
    if formats:
        flags["precision"] = ",".join(formats)
    page = explore_page(
        str(flags.pop("model")), [str(gpu) for gpu in gpus], flags, asked.checkpoint
    )
    page.write(Path(out))
    return len(page.servers)
