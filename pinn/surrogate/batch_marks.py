"""Warnings (marks) for batches that exceed the engine's limits or the range of training data."""

from collections.abc import Sequence

from pinn.engines.deployment import Deployment
from pinn.memory.kv_cache import MemoryFit, batch_blocks, memory_fit
from pinn.physics.batch_sums import beyond_taught
from pinn.specs.batch import Batch


def batch_marks(
    batches: Sequence[Batch], deployment: Deployment, fit: MemoryFit | None = None
) -> list[list[str]]:
    """Return the limits of the engine and of the training data that each batch exceeds.

    Args:
        batches: Batches of one replica.
        deployment: Deployment whose flags limit the batches.
        fit: KV cache of the deployment; None for the predicted one.

    Returns:
        For each batch, the limits that it exceeds, each as a short text. The list is empty if the
        engine can run the batch and the batch is within the range of the training data.
    """
    limits, fit = _limits(deployment), fit or memory_fit(deployment)
    return [
        _never_run(batch, limits) + _beyond_cache(batch, deployment, fit) + beyond_taught(batch)
        for batch in batches
    ]


def marks_of_each(
    batch: Batch, deployments: Sequence[Deployment], fits: Sequence[MemoryFit]
) -> list[str]:
    """Describe, for each deployment, the limits that one batch exceeds; empty if none."""
    limits = [_limits(deployment) for deployment in deployments]
    beyond = beyond_taught(batch)
    never = {each: _never_run(batch, each) for each in set(limits)}
    each_fit = zip(limits, deployments, fits, strict=True)
    return ["; ".join(never[li] + _beyond_cache(batch, d, fit) + beyond) for li, d, fit in each_fit]


def _beyond_cache(batch: Batch, deployment: Deployment, fit: MemoryFit) -> list[str]:
    if fit.layout is None or fit.holds(batch, deployment):
        return []
    needed, tokens = batch_blocks(batch, deployment, fit.layout), deployment.recipe.block_tokens
    blocks = fit.layout.blocks
    return [f"{needed:,} blocks of {tokens:,} tokens exceed the {blocks:,} blocks of the KV cache"]


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
