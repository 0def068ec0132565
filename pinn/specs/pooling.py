"""Pooling models, which return embeddings, rankings or classes of prompts instead of text."""

from dataclasses import replace

from pinn.errors import PinnError
from pinn.specs.model import ModelSpec

GENERATE, POOLING = "generate", "pooling"


def with_runner(model: ModelSpec, runner: str) -> ModelSpec:
    """Return a model as ``--runner`` serves it: for text or pooling; ``auto`` changes nothing.

    Raises:
        PinnError: If ``runner`` is ``generate`` and the model has no output head.
    """
    if runner == GENERATE and model.pooled:
        raise PinnError(
            f"--runner is {GENERATE}, but {model.name} has no output head: omit --runner"
        )
    return replace(model, pooled=True) if runner == POOLING and not model.pooled else model


def check_output(model: ModelSpec, output_tokens: int) -> None:
    """Check that a pooling model's workload has no output tokens.

    Raises:
        PinnError: If the model is a pooling model and the number of output tokens is not 0.
    """
    if model.pooled and output_tokens > 0:
        raise PinnError(
            f"--output-len must be 0 for {model.name}, which is served for embeddings or scores "
            f"and generates no tokens, got {output_tokens:,}"
        )
