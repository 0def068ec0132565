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
        fault = f"{model.name} has no output head"
        raise PinnError(f"--runner {GENERATE}: {fault}: leave it out")
    return replace(model, pooled=True) if runner == POOLING and not model.pooled else model


def check_output(model: ModelSpec, output_tokens: int) -> None:
    """Raise an error if a pooling model gets a workload with output tokens.

    Raises:
        PinnError: If the model is a pooling model and the number of output tokens is not 0.
    """
    if model.pooled and output_tokens > 0:
        fault = f"{model.name} is served for embeddings or scores and generates no tokens"
        raise PinnError(f"{fault}: give --output-len 0, got {output_tokens:,}")
