"""Models that give vectors or scores of prompts instead of tokens: to embed, rank or classify."""

from dataclasses import replace

from pinn.errors import PinnError
from pinn.specs.model import ModelSpec

GENERATE, POOLING = "generate", "pooling"


def with_runner(model: ModelSpec, runner: str) -> ModelSpec:
    """Return a model as ``--runner`` serves it; ``auto`` as its architecture says.

    Raises:
        PinnError: If it is to generate tokens and has no output head.
    """
    if runner == GENERATE and model.pooled:
        fault = f"{model.name} has no output head"
        raise PinnError(f"--runner {GENERATE}: {fault}: leave it out")
    return replace(model, pooled=True) if runner == POOLING and not model.pooled else model


def check_output(model: ModelSpec, output_tokens: int) -> None:
    """Refuse output tokens of a model that generates none.

    Raises:
        PinnError: If a request is to have any.
    """
    if model.pooled and output_tokens > 0:
        fault = f"{model.name} is served for embeddings or scores and generates no tokens"
        raise PinnError(f"{fault}: give --output-len 0, got {output_tokens:,}")
