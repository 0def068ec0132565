"""Plans of servers for a load, and a page with sliders of a few servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.api.arguments import read_request, with_arguments
from pinn.api.requests import ExploreRequest, WorkersRequest
from pinn.common.screen import printed
from pinn.common.workers import Workers
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.planning.explore.page import explore_page
from pinn.planning.manifest import manifest
from pinn.planning.plan import Plan, PlanRequest
from pinn.planning.planner import plan_load
from pinn.planning.prices import read_prices
from pinn.planning.report import choice_rows, print_plan, write_files
from pinn.simulator.workloads.load import LoadFlags
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PlannedFleet:
    """A plan with its table and files.

    Attributes:
        plan: Plan with its choices, best first; the content of plan.json.
    """

    plan: Plan

    def table(self) -> pd.DataFrame:
        """Return a row per choice, in SI units, with every flag: the content of plan.csv."""
        import pandas as pd

        return pd.DataFrame(choice_rows(self.plan))

    def save(self, folder: str | Path) -> None:
        """Write plan.json, plan.csv, plan.html and its pictures, and manifest.yaml."""
        write_files(self.plan, Path(folder))

    def manifest(self) -> str:
        """Return the first choice as Kubernetes objects, in YAML.

        Raises:
            PinnError: If its engine has no command for a replica across machines.
        """
        return manifest(self.plan)

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
    price: str | Path | Mapping[str, float] = "",
    purchase_price: str | Mapping[str, float] = "",
    purchase_years: float | None = None,
    **given: object,
) -> PlannedFleet:
    """Recommend servers for a load, how to start them, and how sure that is, as ``pinn plan`` says.

    Args:
        workload: File of the load, as of :func:`pinn.simulate`; no closed loop. None where flags
            say it, such as ``input_len=1024, output_len=256``.
        slo: Limits, which are needed, such as ``"p99 ttft<=2s"`` or
            ``"ttft<=1s, tpot<=40ms for 95 %"``.
        model: Name, or path of a config.json or its folder.
        gpu: One or several GPUs that may be rented.
        price: Per GPU and hour, as a mapping, as text such as ``"H100=2.5 H200=3.2"``, or a file of
            prices. [default: GPUs are counted]
        purchase_price: Prices of GPUs that are owned, in the same way, which become costs per hour.
        purchase_years: Years over which these GPUs are written off.
        **given: All else, the engine's flags, which hold for all candidates, and the load's too.

    Raises:
        PinnError: If nothing fits or holds the limits, with what comes nearest.
    """
    given = {"workers": 1, **given}
    where = {f.name: given.pop(f.name, None) for f in fields(WorkersRequest)}
    costs = {"price": price, "purchase_price": purchase_price, "purchase_years": purchase_years}
    own = {"workload": workload, "slo": slo, "model": model, "gpu": gpu, **costs}
    asked, flags = read_request(PlanRequest, given, *_SPECIFICATIONS, **own, **where)
    place, _ = read_request(WorkersRequest, where)
    prices = read_prices(price, purchase_price, purchase_years)
    workers = Workers(place.backend, place.count, place.address, torch=False)
    return PlannedFleet(plan_load(asked, flags, prices, workers))


@with_arguments(ServingSpec, request=ExploreRequest, deploys=True)
def explore(
    out: str | Path,
    model: str | Path | None = None,
    gpu: str | Path | Sequence[str | Path] = (),
    **given: object,
) -> int:
    """Write a page with sliders of a few servers, which needs no other file: ``pinn explore``.

    Args:
        out: Page to write.
        model: Name, or path of a config.json or its folder.
        gpu: Names, or paths of datasheets, to choose from.
        **given: All else; flags that take one value are for all servers.

    Returns:
        How many servers the page has; those that do not start are named in it.

    Raises:
        PinnError: If something is unknown, no server starts, or the page cannot show one.
    """
    own = {"out": out, "model": model, "gpu": gpu}
    asked, flags = read_request(ExploreRequest, given, ServingSpec, **own)
    if asked.model is None or not asked.gpu:
        raise PinnError("--model and --gpu are needed: 'pinn models' and 'pinn gpus' list them")
    page = explore_page(asked.model, asked.gpu.split(","), flags, asked.checkpoint)
    page.write(Path(out))
    return len(page.servers)
