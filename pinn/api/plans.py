"""What to rent for a load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.api.arguments import read_request, with_arguments
from pinn.common.screen import printed
from pinn.common.workers import Workers
from pinn.planning.plan import Plan
from pinn.planning.plan_load import plan_load
from pinn.planning.report import choice_rows, print_plan, write_files
from pinn.planning.request import PlanRequest
from pinn.simulator.engine_spec import EngineSpec
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
