"""Pooling models, which return vectors or scores of prompts: for embedding, ranking, classes."""

from dataclasses import replace

from pinn.errors import PinnError
from pinn.specs.model import ModelSpec

GENERATE, POOLING = "generate", "pooling"


def with_runner(model: ModelSpec, runner: str) -> ModelSpec:
    """Return a model as ``--runner`` serves it; ``auto`` follows its architecture.

    Raises:
        PinnError: If the model is to generate tokens and has no output head.
    """
    if runner == GENERATE and model.pooled:
        fault = f"{model.name} has no output head"
        raise PinnError(f"--runner {GENERATE}: {fault}: leave it out")
    return replace(model, pooled=True) if runner == POOLING and not model.pooled else model


def check_output(model: ModelSpec, output_tokens: int) -> None:
    """Check that a pooling model is not asked for output tokens.

    Raises:
        PinnError: If a pooling model is asked for output tokens.
    """
    if model.pooled and output_tokens > 0:
        fault = f"{model.name} is served for embeddings or scores and generates no tokens"
        raise PinnError(f"{fault}: give --output-len 0, got {output_tokens:,}")
