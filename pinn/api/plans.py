"""Plans of servers for a load, and an interactive page about a few servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.api.arguments import read_request, with_arguments
from pinn.api.loads import workload_file
from pinn.api.requests import ExploreRequest, WorkersRequest
from pinn.common import JsonObject
from pinn.common.screen import PrintedResult, printed
from pinn.common.workers import Workers
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.planning.explore.page import explore_page
from pinn.planning.manifest import manifest
from pinn.planning.plan import NoPlanError as NoPlanError
from pinn.planning.plan import Plan, PlanRequest
from pinn.planning.plan_files import choice_rows, plan_json, write_files
from pinn.planning.planner import plan_load
from pinn.planning.prices import read_prices
from pinn.planning.report import print_plan
from pinn.simulator.workloads.load import LoadFlags
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import pandas as pd

    from pinn.api.loads import AnyWorkload


@dataclass(frozen=True, repr=False)
class PlannedFleet(PrintedResult):
    """Plan of servers for a load, with its table and files.

    Attributes:
        plan: Plan with its rows, best first; the content of plan.json.
        load: Name and content of the load's file, if the load was a mapping or a table.
    """

    plan: Plan
    load: tuple[str, str] | None = None

    def table(self) -> pd.DataFrame:
        """Return one row per candidate in the plan, in SI units, with all flags, as in plan.csv."""
        import pandas as pd

        return pd.DataFrame(choice_rows(self.plan))

    def to_json(self) -> JsonObject:
        """Return the content of plan.json."""
        found: JsonObject = json.loads(plan_json(self.plan))
        return found

    def save(self, folder: str | Path) -> None:
        """Write plan.json, plan.csv, plan.html with its plots, and manifest.yaml.

        A load that was a mapping or a table is written to workload.yaml or workload.csv, which the
        commands of the plan name.
        """
        write_files(self.plan, Path(folder))
        if self.load is not None:
            name, text = self.load
            Path(folder, name).write_text(text)

    def manifest(self, row: int = 1) -> str:
        """Return the servers of a row as Kubernetes objects, in YAML.

        Args:
            row: Rank of the row in the plan, from 1; the recommended row is the first.

        Raises:
            PinnError: If the plan has no such row, or if a replica spans machines and the engine
                has no launch command for that.
        """
        return manifest(self.plan, row)

    def print_report(self, folder: Path | None = None) -> None:
        """Print the plan and, if the plan's files were saved, the path of their folder."""
        print_plan(self.plan, folder)

    def __str__(self) -> str:
        """Return the text that ``pinn plan`` prints."""
        return printed(self.print_report)


_SPECIFICATIONS = (ServingSpec, EngineSpec, LoadFlags)


@with_arguments(*_SPECIFICATIONS, request=(PlanRequest, WorkersRequest), deploys=True)
def plan(
    workload: AnyWorkload = None,
    slo: str = "",
    model: str | Path | None = None,
    gpu: str | Path | Sequence[str | Path] | None = None,
    *,
    price: str | Path | Mapping[str, float] = "",
    purchase_price: str | Mapping[str, float] = "",
    purchase_years: float | None = None,
    **given: object,
) -> PlannedFleet:
    """Recommend servers that meet an SLO under a load, as ``pinn plan`` does.

    Args:
        workload: Load in any form that :func:`pinn.simulate` accepts, except closed loops. None if
            flags describe the load, such as ``input_len=1024, output_len=256``. For a mapping or a
            table, the plan's commands name the file workload.yaml or workload.csv, which
            :meth:`PlannedFleet.save` writes.
        slo: Latency limits that the servers must meet, such as ``"p99 ttft<=2s"`` or
            ``"ttft<=1s, tpot<=40ms for 95 %"``; required.
        model: Name, or path of a config.json or its folder.
        gpu: One or several GPUs that may be rented.
        price: Price per GPU-hour, as a mapping, as a string such as ``"H100=2.5 H200=3.2"``, or a
            file of prices. [default: rows are sorted by the number of GPUs]
        purchase_price: Purchase price of each GPU that you own, as a mapping or a string; converted
            to a cost per hour.
        purchase_years: Number of years over which purchased GPUs are depreciated.
        **given: Keyword arguments listed below, flags of the load, and engine flags, which apply to
            all candidates.

    Raises:
        PinnError: If no candidate fits on its GPUs or meets the limits; the message names the
            candidate that comes closest.
    """
    given = {"workers": 1, **given}
    where = {f.name: given.pop(f.name, None) for f in fields(WorkersRequest)}
    costs = {"price": price, "purchase_price": purchase_price, "purchase_years": purchase_years}
    place, _ = read_request(WorkersRequest, where)
    prices = read_prices(price, purchase_price, purchase_years)
    workers = Workers(place.backend, place.count, place.address, torch=False)
    with workload_file(workload) as path:
        own = {"workload": path, "slo": slo, "model": model, "gpu": gpu, **costs}
        asked, flags = read_request(PlanRequest, given, *_SPECIFICATIONS, **own, **where)
        load = None
        if path is not None and not isinstance(workload, str | Path):
            load = path.name, path.read_text()
        return PlannedFleet(plan_load(asked, flags, prices, workers), load)


@with_arguments(ServingSpec, request=ExploreRequest, deploys=True)
def explore(
    out: str | Path,
    model: str | Path | None = None,
    gpu: str | Path | Sequence[str | Path] = (),
    **given: object,
) -> int:
    """Write an interactive HTML page about a few servers' performance, as ``pinn explore`` does.

    Args:
        out: HTML file to write.
        model: Name, or path of a config.json or its folder.
        gpu: Names of GPUs, or paths of datasheets, between which the page's user can choose.
        **given: Keyword arguments listed below; flags with one value apply to all servers.

    Returns:
        Number of servers on the page. The page also lists servers that do not start.

    Raises:
        PinnError: If a name or flag is unknown, no server starts, or a server cannot be shown on
            the page.
    """
    own = {"out": out, "model": model, "gpu": gpu}
    asked, flags = read_request(ExploreRequest, given, ServingSpec, **own)
    if asked.model is None or not asked.gpu:
        raise PinnError(
            "--model and --gpu are required: give names that 'pinn models' and 'pinn gpus' list"
        )
    page = explore_page(asked.model, asked.gpu.split(","), flags, asked.checkpoint)
    page.write(Path(out))
    return len(page.servers)
