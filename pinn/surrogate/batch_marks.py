"""Warnings (marks) for batches that exceed the engine's limits or the range of training data."""

from collections.abc import Sequence

from pinn.engines.deployment import Deployment
from pinn.physics.batch_sums import beyond_taught
from pinn.specs.batch import Batch


def batch_marks(batches: Sequence[Batch], deployment: Deployment) -> list[list[str]]:
    """Return the limits of the engine and of the training data that each batch exceeds.

    Args:
        batches: Batches of one replica.
        deployment: Deployment whose flags limit the batches.

    Returns:
        For each batch, the limits that it exceeds, each as a short text. The list is empty if the
        engine can run the batch and the batch is within the range of the training data.
    """
    limits = _limits(deployment)
    return [_never_run(batch, limits) + beyond_taught(batch) for batch in batches]


def marks_of_each(batch: Batch, deployments: Sequence[Deployment]) -> list[str]:
    """Return, for each deployment, a text on the limits that a batch exceeds; else empty."""
    limits = [_limits(deployment) for deployment in deployments]
    beyond = beyond_taught(batch)
    marks = {each: "; ".join(_never_run(batch, each) + beyond) for each in set(limits)}
    return [marks[each] for each in limits]


def _limits(deployment: Deployment) -> tuple[int, int, int]:
    """Return a deployment's maximum requests per step, tokens per step, and context length."""
    recipe = deployment.recipe
    longest = deployment.serving.max_model_len or deployment.model.max_position
    return recipe.max_requests, recipe.token_budget, longest


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
