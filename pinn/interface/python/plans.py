"""What to rent for a load."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.common.workers import Workers
from pinn.interface.commands.plan import planned, write_files
from pinn.interface.python.prediction import FlagValue, given_flags, path_or_none, with_flags
from pinn.planning.plan import Plan
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.workloads.load_flags import LoadFlags
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PlannedFleet:
    """Choices for a load, best first.

    Attributes:
        plan: Everything that was found, as plan.json has it.
    """

    plan: Plan

    def table(self) -> pd.DataFrame:
        """A row per choice, in SI units, with every flag: what plan.csv holds."""
        import pandas as pd

        from pinn.interface.commands.plan_report import choice_rows

        return pd.DataFrame(choice_rows(self.plan))

    def save(self, folder: str | Path) -> None:
        """Write plan.json, plan.csv, plan.html and its pictures."""
        write_files(self.plan, Path(folder))

    def __str__(self) -> str:
        """What ``pinn plan`` prints."""
        from pinn.interface.commands.plan_report import print_plan

        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            print_plan(self.plan, None)
        return text.getvalue()


@with_flags(ServingSpec, EngineSpec, LoadFlags, deploys=True)
def plan(
    workload: str | Path | None = None,
    slo: str = "",
    model: str | Path | None = None,
    gpu: str | Path | Sequence[str | Path] = (),
    *,
    rate: float | None = None,
    max_gpus: int | None = None,
    prices: Mapping[str, float] | None = None,
    configs: str | Path | None = None,
    candidates: str | Path | None = None,
    disaggregate: bool = False,
    coefficients: Sequence[str | Path] = (),
    checkpoint: str | Path | None = None,
    top: int = 5,
    seed: int | None = None,
    workers: int = 1,
    **flags: FlagValue,
) -> PlannedFleet:
    """What to rent for a load, how to start it, and how sure that is, as ``pinn plan`` says.

    Args:
        workload: File of the load, as of :func:`pinn.simulate`; no closed loop. None where flags
            say it, such as ``input_len=1024, output_len=256``.
        slo: Limits, which are needed, such as ``"p99 ttft<=2s"`` or
            ``"ttft<=1s, tpot<=40ms for 95 %"``.
        model: Name, or path of a config.json or its folder.
        gpu: One or several GPUs that may be rented.
        rate: Mean requests per second to serve, for as long as the load lasts.
            [default: how much each candidate serves]
        max_gpus: GPUs to rent at most.
        prices: Per GPU and hour. [default: GPUs are counted]
        configs: File of the only candidates.
        candidates: File of flags to combine. [default: conf/plan/candidates.yaml]
        disaggregate: Also try prefill and decode on servers of their own.
        coefficients: Files of ``pinn calibrate``.
        checkpoint: Trained network. [default: PINN_CHECKPOINT, else checkpoints/pinn.safetensors]
        top: Rows to examine in full.
        seed: Of random draws. [default: the file's, else 0]
        workers: Processes; with more than 1, call it below ``if __name__ == "__main__"``.
        **flags: The engine's flags, which hold for all candidates, and the load's.

    Raises:
        PinnError: If nothing fits or holds the limits, with what comes nearest.
    """
    gpus = [gpu] if isinstance(gpu, str | Path) else gpu
    made = planned(
        path_or_none(workload),
        slo,
        model=None if model is None else str(model),
        gpu=",".join(map(str, gpus)) or None,
        rate=None if rate is None else float(rate),
        max_gpus=max_gpus,
        prices={load_gpu(name).name: price for name, price in (prices or {}).items()},
        configs=path_or_none(configs),
        candidates=path_or_none(candidates),
        disaggregate=disaggregate,
        coefficients=[Path(path) for path in coefficients],
        checkpoint=path_or_none(checkpoint),
        top=top,
        seed=seed,
        workers=Workers(count=workers, torch=False),
        progress=lambda _: None,
        flags=given_flags(
            flags, ServingSpec, EngineSpec, LoadFlags, gpu=",".join(map(str, gpus)) or None
        ),
    )
    return PlannedFleet(made)
