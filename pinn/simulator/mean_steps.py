"""The steps behind a run's mean TPOT and TTFT, each with its share in them.

``mean TPOT = sum(tpot_share x step time)`` and ``mean TTFT = sum(ttft_share x step time)``, the API
server's work aside: both are sums of steps, so they are linear in beta for the batches of the run.
The API server adds to a TTFT; from a TPOT it takes what it adds to the first token beyond what it
adds to the last, over the gaps. What a formula other than beta says of the same steps goes into the
same sums.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import BatchSums
from pinn.simulator.run import Run

#: A number, or an array without the axis of groups.
OverGroups = Float[np.ndarray, "..."] | np.float64


@dataclass(frozen=True)
class MeanSteps:
    """Groups of consecutive alike steps.

    Attributes:
        sums: Of the mean batch of each group, fields of shape ``[groups]``.
        tpot_share: Of all steps of the group together.
        ttft_share: The same for the time to first token.
    """

    sums: BatchSums
    tpot_share: Float[np.ndarray, " groups"]
    ttft_share: Float[np.ndarray, " groups"]

    def mean_tpot(self, values: Float[np.ndarray, "groups ..."]) -> OverGroups:
        """Mean of something of each step over the gaps between tokens."""
        return self.tpot_share @ values

    def mean_ttft(self, values: Float[np.ndarray, "groups ..."]) -> OverGroups:
        """Sum of something of each step over the steps until the first token, mean of requests."""
        return self.ttft_share @ values


def mean_steps(run: Run) -> MeanSteps:
    """Work out the shares of a run of one replica without pipeline stages.

    Requests that were not served to the end are left out, as in a client's means; those of one
    token have no TPOT.
    """
    requests, start = run.requests, run.steps["start_s"]
    end = start + run.steps["duration_s"]
    served = requests.finished
    first, last = (
        np.searchsorted(start, moment[served], side="left")
        for moment in (requests.engine_first_token_s, requests.engine_finish_s)
    )
    gaps = requests.output_tokens[served] - 1.0
    several = gaps > 0
    tpot = _spread(len(start), first[several], last[several], 1 / gaps[several])
    tpot /= max(int(several.sum()), 1)
    handed = requests.handed_s[served]
    met = np.clip(np.searchsorted(start, handed, side="right") - 1, 0, None)
    left = np.clip((end[met] - handed) / (end[met] - start[met]), 0.0, 1.0)
    ttft = _spread(len(start), met + 1, np.maximum(first, met + 1), np.ones(len(met)))
    np.add.at(ttft, met, left)
    return _grouped(run, tpot, ttft / max(int(served.sum()), 1))


def _spread(
    steps: int, begin: np.ndarray, end: np.ndarray, amount: np.ndarray
) -> Float[np.ndarray, " steps"]:
    """Add each amount to the steps from ``begin`` to before ``end``."""
    change = np.zeros(steps + 1)
    np.add.at(change, begin, amount)
    np.add.at(change, end, -amount)
    return np.cumsum(change)[:-1]


def _grouped(run: Run, tpot: np.ndarray, ttft: np.ndarray) -> MeanSteps:
    """Steps of decodes alone form a group while the requests in them are the same number."""
    sums = run.steps.sums
    columns = np.stack([getattr(sums, f.name) for f in fields(BatchSums)])
    fresh = np.ones(columns.shape[1], dtype=bool)
    fresh[1:] = (np.diff(sums.decode_requests) != 0) | (sums.prefill_requests[1:] > 0)
    fresh[1:] |= sums.prefill_requests[:-1] > 0
    begin = np.flatnonzero(fresh)
    size = np.diff([*begin, columns.shape[1]])
    return MeanSteps(
        BatchSums(*(np.add.reduceat(column, begin) / size for column in columns)),
        np.add.reduceat(tpot, begin),
        np.add.reduceat(ttft, begin),
    )
