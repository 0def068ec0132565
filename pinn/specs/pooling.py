"""Models that give vectors or scores of prompts instead of tokens: to embed, rank or classify."""

from collections.abc import Mapping
from dataclasses import replace

from pinn.errors import PinnError
from pinn.specs.model import ModelSpec

GENERATE, POOLING = "generate", "pooling"
#: Endings of architectures and the runner that vLLM takes for them, the first that fits counts
#: (vllm 0.33.0 config/model.py: _SUFFIX_TO_DEFAULTS).
_RUNNERS = (
    ("ForCausalLM", GENERATE), ("ForConditionalGeneration", GENERATE), ("ChatModel", GENERATE),
    ("LMHeadModel", GENERATE), ("ForTextEncoding", POOLING), ("EmbeddingModel", POOLING),
    ("ForSequenceClassification", POOLING), ("ForTokenClassification", POOLING),
    ("ClassificationModel", POOLING), ("ForRewardModeling", POOLING), ("RewardModel", POOLING),
    ("Model", POOLING),
)  # fmt: skip


def _architecture(config: Mapping[str, object]) -> str:
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def is_pooled(config: Mapping[str, object]) -> bool:
    """Return whether the architecture of a config.json is served without generating tokens.

    >>> is_pooled({"architectures": ["Qwen3ForSequenceClassification"]}), is_pooled({})
    (True, False)
    """
    name = _architecture(config)
    return next((runner for end, runner in _RUNNERS if name.endswith(end)), GENERATE) == POOLING


def is_bidirectional(config: Mapping[str, object]) -> bool:
    """Return whether the architecture's name says that tokens attend to what follows.

    >>> is_bidirectional({"architectures": ["LlamaBidirectionalModel"]})
    True
    """
    name = _architecture(config)
    return "Bidirectional" in name or name.endswith("ForMaskedLM")


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
        fault = f"{model.name} is served for vectors or scores and generates no tokens"
        raise PinnError(f"{fault}: give --output-len 0, got {output_tokens:,}")
