"""Whether a run's load was more than the server could serve: the first thing to know of it."""

from __future__ import annotations

import numpy as np

from pinn.simulator.run import Run

#: Share of a stage's requests that may wait, when its last one arrives, in a queue that is steady.
_WAITING_SHARE = 0.05
_LEAST_WAITING = 8


def overload(run: Run) -> str | None:
    """What shows that the server could not keep up, in a sentence; None where it could.

    Clients gave up, or an open loop left a queue behind: so many requests of a stage had not begun
    when its last one arrived. A steady queue does not grow with the length of a stage. Clients of
    a closed loop wait for each other whatever the server does.
    """
    lost = int((run.requests.status == "timed_out").sum())
    if lost:
        return f"overloaded: {lost:,} of {len(run.requests):,} requests timed out"
    if run.workload.concurrency is not None:
        return None
    waiting = [_waiting(run, stage) for stage in range(run.workload.stages)]
    worst = int(np.argmax([left / sent for left, sent in waiting]))
    left, sent = waiting[worst]
    if left < max(_WAITING_SHARE * sent, _LEAST_WAITING):
        return None
    of_stage = f" of stage {worst}" if run.workload.stages > 1 else ""
    return (
        f"overloaded: {left:,} of {sent:,} requests{of_stage} still waited when the last one "
        "came, so the figures grow with the length of the load"
    )


def _waiting(run: Run, stage: int) -> tuple[int, int]:
    """Requests of a stage that wait when its last one arrives, and all of them."""
    r = run.requests
    mine = (r.stage == stage) & (r.status != "rejected")
    if not mine.any():
        return 0, 1
    last_s = r.arrival_s[mine].max()
    return int((~(r.scheduled_s[mine] <= last_s)).sum()), int(mine.sum())
