"""Figures of a run as dot products: which features its clients' latencies are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from pinn.simulator.feature_sums import request_delay_features, request_feature_sums
from pinn.simulator.latency_metrics import figure_requests
from pinn.simulator.run import Run
from pinn.specs.deployment import Deployment


def figure_features(
    deployment: Deployment, run: Run, figures: Sequence[tuple[str, str]]
) -> tuple[Float[np.ndarray, "figures step_features"], Float[np.ndarray, "figures alphas"]]:
    """Mean features of the requests behind each figure.

    A change of the coefficients moves a figure by the change of ``beta . step features + alpha .
    request features``, as long as batches and the API server's order of work stay what they are.
    A percentile moves as the mean of the requests around it.

    Args:
        deployment: What ran.
        run: The run.
        figures: (stage, figure) pairs, see ``pinn.simulator.latency_metrics``.
    """
    sums = request_feature_sums(deployment, run)
    delay_first, delay_last = request_delay_features(run)
    pairs = {
        "ttft": (sums.to_first_token, delay_first),
        "e2e": (sums.to_last_token, delay_last),
        "itl": (sums.per_gap, (delay_last - delay_first) / sums.gaps[:, None]),
    }
    means = []
    for stage, figure in figures:
        of_steps, of_request = pairs[figure.partition("_")[0]]
        # A request of a single token has no gap between tokens.
        mine = figure_requests(run, stage, figure) & ~np.isnan(of_steps[:, 0])
        means.append((of_steps[mine].mean(0), of_request[mine].mean(0)))
    step, request = (np.array(column) for column in zip(*means, strict=True))
    return step, request
