"""Marks of batches that the engine never runs, or that lie beyond what was learned from."""

from __future__ import annotations

from collections.abc import Sequence

from pinn.simulator.memory import max_model_len
from pinn.specs.batch import Batch
from pinn.specs.deployment import Deployment
from pinn.training.teacher.batches import beyond_taught


def batch_marks(batch: Batch, deployment: Deployment) -> list[str]:
    """Limits of the engine and of the teaching that a batch exceeds, each in a few words.

    Args:
        batch: Of one replica.
        deployment: Whose flags it is held against.

    Returns:
        Nothing for a batch that the engine can run and that lies within what was taught.
    """
    return _never_run(batch, _limits(deployment)) + beyond_taught(batch)


def marks_of_each(batch: Batch, deployments: Sequence[Deployment]) -> list[str]:
    """The marks of one batch on each deployment, as one text; those of the same limits share it."""
    limits = [_limits(deployment) for deployment in deployments]
    taught = beyond_taught(batch)
    marks = {each: "; ".join(_never_run(batch, each) + taught) for each in set(limits)}
    return [marks[each] for each in limits]


def _limits(deployment: Deployment) -> tuple[int, int, int]:
    """Requests and tokens of a step, and the longest context."""
    recipe = deployment.recipe
    return recipe.max_requests, recipe.token_budget, max_model_len(deployment)


def _never_run(batch: Batch, limits: tuple[int, int, int]) -> list[str]:
    got = (
        ("requests", len(batch), "--max-num-seqs"),
        ("tokens", batch.tokens, "--max-num-batched-tokens"),
        ("tokens of context", batch.longest, "--max-model-len"),
    )
    return [
        f"{number:,} {what} exceed {flag} {most:,}"
        for (what, number, flag), most in zip(got, limits, strict=True)
        if number > most
    ]


def marks_lines(batches: list[dict[str, object]]) -> list[str]:
    """A line for each batch of a report that has marks."""
    return [
        f"{entry['batch']} is beyond limits: {'; '.join(map(str, marks))}."
        for entry in batches
        if isinstance(marks := entry.get("marks"), list) and marks
    ]
