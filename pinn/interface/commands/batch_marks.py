"""Marks of batches that the engine never runs, or that lie beyond what was taught."""

from __future__ import annotations

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
    recipe = deployment.recipe
    limits = (
        ("requests", len(batch), "--max-num-seqs", recipe.max_requests),
        ("tokens", batch.tokens, "--max-num-batched-tokens", recipe.token_budget),
        ("tokens of context", batch.longest, "--max-model-len", max_model_len(deployment)),
    )
    never = [
        f"{got:,} {what} exceed {flag} {most:,}" for what, got, flag, most in limits if got > most
    ]
    return never + beyond_taught(batch)


def marks_lines(batches: list[dict[str, object]]) -> list[str]:
    """A line for each batch of a report that has marks."""
    return [
        f"{entry['batch']} is marked: {'; '.join(map(str, marks))}."
        for entry in batches
        if isinstance(marks := entry.get("marks"), list) and marks
    ]
