"""The request of ``pinn plan`` and ``pinn.plan``."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A load to serve within limits, and what may be rented for it.

    Attributes:
        slo: Limits: 'ttft<=1s, tpot<=40ms for 95 %' asks that so many requests meet all of them;
            'p99 ttft<=2s', 'mean e2e<=20s', 'p95 itl<=80ms' are on all requests. Separate the two
            kinds with a semicolon.
        workload: The load, as of 'pinn simulate'; no closed loop. Or give --input-len and the flags
            beside it.
        gpu: Names, or paths of datasheets, separated by commas.
        rate: Mean requests per second to serve, for as long as the load lasts. Without it, how much
            each candidate serves, by what a request per second takes.
        max_gpus: GPUs to rent at most.
        configs: Only these candidates: a file as of 'pinn coefficients --configs'.
        candidates: Flags to combine. [default: conf/plan/candidates.yaml]
        disaggregate: Also try prefill and decode on servers of their own: pairs of the pools that
            the file of --candidates lists.
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network
            for the configuration that it belongs to. Repeatable.
        top: Rows to examine in full.
        seed: Of random draws. [default: the file's, else 0]
    """

    slo: str
    workload: Path | None = None
    model: str | None = None
    gpu: str | None = None
    rate: float | None = None
    max_gpus: int | None = None
    configs: Path | None = None
    candidates: Path | None = None
    disaggregate: bool = False
    coefficients: list[Path] | None = None
    checkpoint: Path | None = None
    top: int = 5
    seed: int | None = None
