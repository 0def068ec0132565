"""Step features summed over steps and over requests: what a refit of beta needs of a run.

Given the batches, everything that a run's clients measure is linear in beta: a request's time
from the engine's input queue to its first token is the sum of the steps in between, the one in
flight at its arrival counted by the share that was left of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Shaped

from pinn.physics.request import REQUEST_FEATURES, phase_mask, request_features
from pinn.physics.speculation import deployment_features
from pinn.physics.step import STEP_FEATURES
from pinn.simulator.run import RequestRecords, Run, StepRecords
from pinn.specs.deployment import Deployment

_CHUNK_STEPS = 1 << 15

#: Alphas of the API server's work, in the order of ``RequestRecords.handed_work``.
_SERVED = [
    list(REQUEST_FEATURES).index(name)
    for name in (
        "arrival_to_queue.constant", "arrival_to_queue.prompt_token", "output_token.constant",
    )
]  # fmt: skip


@dataclass(frozen=True)
class FeatureSums:
    """Per request, sums of step features over the steps that it waits for or takes part in.

    With ``beta`` the coefficients of the run, without pipeline stages and with the engine in a
    process of its own, ``to_first_token @ beta`` is ``engine_first_token_s - handed_s``,
    ``to_last_token @ beta`` is ``engine_finish_s - handed_s``, and their difference divided by the
    gaps is the engine's share of the mean ITL. Rows are NaN where the request has no such token.

    Attributes:
        to_first_token: From the engine's input queue to the end of the first token's step.
        to_last_token: To the end of the last token's step.
        gaps: Gaps between tokens; NaN where there is none.
    """

    to_first_token: Float[np.ndarray, "requests features"]
    to_last_token: Float[np.ndarray, "requests features"]
    gaps: Float[np.ndarray, " requests"]

    @property
    def per_gap(self) -> Float[np.ndarray, "requests features"]:
        """Mean features between two tokens of a request: its ITL is beta times this."""
        return (self.to_last_token - self.to_first_token) / self.gaps[:, None]


def step_feature_sums(
    deployment: Deployment, run: Run, steps: Shaped[np.ndarray, " chosen"] | None = None
) -> Float[np.ndarray, " features"]:
    """Features summed over steps.

    Args:
        deployment: What ran.
        run: The run.
        steps: Mask or index of the steps; all by default.
    """
    table = run.steps.table if steps is None else run.steps.table[steps]
    total = np.zeros(len(STEP_FEATURES))
    for start in range(0, len(table), _CHUNK_STEPS):
        total += _features(deployment, table[start : start + _CHUNK_STEPS]).sum(0)
    return total


def request_feature_sums(deployment: Deployment, run: Run) -> FeatureSums:
    """Features summed over each request's steps."""
    requests = run.requests
    shape = (len(requests), len(STEP_FEATURES))
    first, last = np.full(shape, np.nan), np.full(shape, np.nan)
    groups = run.steps["group"]
    for group in np.unique(groups):
        mine = requests.replica * run.groups // run.replicas == group
        table = run.steps.table[groups == group]
        moments = np.stack(
            [requests.handed_s, requests.engine_first_token_s, requests.engine_finish_s]
        )[:, mine]
        handed, at_first, at_last = _integral(deployment, table, moments)
        first[mine], last[mine] = at_first - handed, at_last - handed
    gaps = np.where(requests.output_tokens > 1, requests.output_tokens - 1.0, np.nan)
    return FeatureSums(first, last, gaps)


def request_delay_features(
    run: Run,
) -> tuple[Float[np.ndarray, "requests features"], Float[np.ndarray, "requests features"]]:
    """How much later a request's first and last token come for each second of an alpha.

    That is, at the moments at which the API server's tasks come: a task waits for all that the
    server has done since it was last idle, so each of those counts. Where nothing waits,
    ``first @ alpha`` is the part of a TTFT that the engine does not know, ``last @ alpha`` that of
    an E2E, and ``FeatureSums @ beta`` is the rest.

    Returns:
        Features up to the first token, and up to the end.
    """
    r = run.requests
    once = request_features(r.start_state)
    start = once * (phase_mask("queue_to_schedule") + phase_mask("schedule_to_first_token"))
    before = request_features(r.arrival_state) * phase_mask("arrival_to_queue") + start
    before[:, _SERVED] = r.handed_work
    first = before + _preemptions(r, r.early_preemptions, r.early_recomputed_tokens)
    first[:, _SERVED] += r.first_work
    last = before + once * phase_mask("completion")
    last = last + _preemptions(r, r.preemptions, r.recomputed_tokens)
    last[:, _SERVED] += r.last_work
    return first, last


def _preemptions(r: RequestRecords, count: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Sum over a request's preemptions, whose situations differ in their tokens alone."""
    mean = np.divide(tokens, count, out=np.zeros(len(count)), where=count > 0)
    state = replace(r.start_state, recomputed_tokens=mean)
    return request_features(state) * phase_mask("preemption") * count[:, None]


def _integral(
    deployment: Deployment, table: Float[np.ndarray, "steps columns"], moments: np.ndarray
) -> Float[np.ndarray, "moments requests features"]:
    """Features spent up to each moment, each step's growing evenly from its start to its end."""
    start, duration = table[:, 0], table[:, 1]
    step = np.clip(np.searchsorted(start, moments, side="right") - 1, 0, None)
    share = np.clip((moments - start[step]) / duration[step], 0.0, 1.0)
    spent = np.empty((*moments.shape, len(STEP_FEATURES)))
    before = np.zeros((len(table) + 1, len(STEP_FEATURES)))
    for begin in range(0, len(table), _CHUNK_STEPS):
        rows = slice(begin, begin + _CHUNK_STEPS)
        before[1:][rows] = _features(deployment, table[rows])
    np.cumsum(before, axis=0, out=before)
    spent[:] = before[step] + share[..., None] * (before[step + 1] - before[step])
    spent[np.isnan(moments)] = np.nan
    return spent


def _features(deployment: Deployment, table: np.ndarray) -> np.ndarray:
    return deployment_features(deployment, StepRecords(table).sums)
