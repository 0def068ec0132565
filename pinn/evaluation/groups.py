"""Named parts of the rows that a results table shows apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from pinn.errors import PinnError
from pinn.specs.deployment import Deployment
from pinn.training.serving_rows import ServingRows

#: Concurrency up to which a benchmark counts as lightly loaded: a choice of what is shown apart.
LOW_CONCURRENCY = 16

#: Part -> whether a row, given its deployment and its concurrency, belongs to it.
GROUPS: dict[str, Callable[[Deployment, int], bool]] = {
    "mixture-of-experts": lambda deployment, _: deployment.model.moe is not None,
    "dense": lambda deployment, _: deployment.model.moe is None,
    "expert-parallel": lambda deployment, _: deployment.recipe.expert_parallel_size > 1,
    "low-concurrency": lambda _, concurrency: concurrency <= LOW_CONCURRENCY,
}


def group_masks(
    names: Sequence[str], rows: ServingRows, predictions: pd.DataFrame
) -> dict[str, pd.Series]:
    """Which predictions belong to each named part.

    Raises:
        PinnError: If a name is not a key of ``GROUPS``.
    """
    unknown = set(names) - set(GROUPS)
    if unknown:
        raise PinnError(f"unknown groups {sorted(unknown)}: known ones are {', '.join(GROUPS)}")
    masks = {}
    for name in names:
        member = {
            row_id: GROUPS[name](rows.deployments[i], concurrency)
            for row_id, i, concurrency in zip(
                rows.row_id, rows.deployment, rows.concurrency, strict=True
            )
        }
        masks[name] = predictions["row_id"].map(member).eq(True)
    return masks
