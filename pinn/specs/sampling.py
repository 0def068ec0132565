"""How next tokens are drawn from the logits: what decides what a sampler does in every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from pinn.errors import PinnError
from pinn.specs.documents import parse_json
from pinn.specs.limits import MOST_MODEL_SIZE, check_size, is_finite, written

#: Override that stands for clients who ask for temperature 0, as most benchmarks do.
GREEDY = '{"temperature": 0}'

#: Values of a file that ``transformers`` 4.57 takes for not set, so that vLLM does not see them
#: (``GenerationConfig.to_diff_dict``).
_NOT_SET = {"top_k": 50}
#: What vLLM reads beside the fields of ``Sampling``; no step depends on it.
_IGNORED = ("max_new_tokens",)


@dataclass(frozen=True)
class Sampling:
    """Settings of the requests; defaults are vLLM's own, which draw from all tokens.

    Attributes:
        temperature: 0 takes the likeliest token (greedy).
        top_k: Only the so many likeliest tokens may be drawn; 0 or -1 for all.
        top_p: Only the likeliest tokens that together have this probability; 1 for all.
        min_p: Only tokens with this share of the likeliest one's probability; 0 for all.
        repetition_penalty: Divides the logits of tokens that occurred; 1 for none.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        rules = {
            "temperature": (self.temperature >= 0, "not be negative"),
            "top_k": (self.top_k >= -1, "be at least -1"),
            "top_p": (0 < self.top_p <= 1, "lie in (0, 1]"),
            "min_p": (0 <= self.min_p <= 1, "lie in [0, 1]"),
            "repetition_penalty": (self.repetition_penalty > 0, "be positive"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise PinnError(f"sampling: {name} must {rule}, got {getattr(self, name)}")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken; nothing is left out then (``SamplingParams``)."""
        return self.temperature == 0

    @property
    def limits_count(self) -> bool:
        """Whether a top-k is at work."""
        return self.top_k > 0 and not self.is_greedy

    @property
    def limits_mass(self) -> bool:
        """Whether a top-p is at work."""
        return self.top_p < 1 and not self.is_greedy

    @property
    def limits_ratio(self) -> bool:
        """Whether a min-p is at work."""
        return self.min_p > 0 and not self.is_greedy

    @property
    def is_penalized(self) -> bool:
        """Whether tokens that occurred are penalized."""
        return self.repetition_penalty != 1


_NAMES = tuple(f.name for f in fields(Sampling))


def sampling_from_generation_config(config: Mapping[str, Any], source: str) -> Sampling:
    """The settings that a generation_config.json asks for, as vLLM 0.15.1 reads it.

    ``vllm/config/model.py: get_diff_sampling_param``: it takes the fields of ``Sampling`` and no
    other; ``do_sample`` does not matter.

    Args:
        config: The JSON object.
        source: File name for error messages.

    Raises:
        PinnError: If a value cannot be used.
    """
    found = {n: config[n] for n in _NAMES if n in config and config[n] != _NOT_SET.get(n)}
    return _sampling(found, source)


@lru_cache(maxsize=1024)
def overridden(base: Sampling, override: str) -> Sampling:
    """Settings with those of vLLM's ``--override-generation-config`` in their place.

    Args:
        base: What holds without the flag.
        override: The flag's JSON object, in which null stands for vLLM's own default; empty where
            the flag is not given.

    Raises:
        PinnError: If it is no JSON object, or a name or value in it cannot be used.

    >>> overridden(Sampling(top_p=0.9), '{"temperature": 0}').is_greedy
    True
    """
    if not override:
        return base
    flag = "--override-generation-config"
    try:
        values = parse_json(override, flag)
    except PinnError:
        values = None
    if not isinstance(values, dict):
        raise PinnError(f"{flag} must be a JSON object such as '{GREEDY}', got {override!r:.200}")
    unknown = [name for name in values if name not in (*_NAMES, *_IGNORED)]
    if unknown:
        raise PinnError(f"{flag}: unknown {', '.join(unknown)}: use {', '.join(_NAMES)}")
    own = {name: getattr(base, name) for name in _NAMES}
    return _sampling(own | {n: v for n, v in values.items() if n in _NAMES}, flag)


def _sampling(values: Mapping[str, Any], source: str) -> Sampling:
    """Settings of JSON values; null stands for the default."""
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        if not is_finite(value):
            raise PinnError(f"{source}: {name} must be a number, got {written(value)}")
        if name == "top_k" and value != int(value):
            raise PinnError(f"{source}: top_k must be a whole number, got {value}")
        check_size(value, MOST_MODEL_SIZE, f"{source}: {name}", "correct it")
    try:
        return Sampling(**given | ({"top_k": int(given["top_k"])} if "top_k" in given else {}))
    except PinnError as error:
        raise PinnError(f"{source}: {error}") from error
