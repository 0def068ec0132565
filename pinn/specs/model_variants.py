"""Names outside the catalogue that are those of a known model in another release or format.

``Qwen/Qwen3-30B-A3B-Instruct-2507-FP8`` is Qwen3-30B-A3B with a longer context, its weights in
fp8. Words are taken off the end of a name until a known one is left: dated and chat releases have
the shapes of their base, and a format in a name is that of the weights.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pinn.specs.model import ModelSpec
from pinn.specs.model_names import find_in_catalog, published_generation
from pinn.specs.precision_override import with_precision

#: Words of a name that say nothing about shapes: kinds of release, and details of a format.
_SILENT = frozenset(
    {
        "base", "block", "chat", "dynamic", "g128", "hf", "instruct", "it", "kv", "marlin", "per",
        "pertensor", "pt", "quantized", "static", "tensor", "thinking",
    }
)  # fmt: skip
_DATE = re.compile(r"\d{4}")
#: Word -> label of ``with_precision``; fp8 goes before what else a name says (``w8a8-FP8``).
_FORMATS = {
    "fp8": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4", "w8a8": "int8",
    "w8a16": "int8_wo", "int8": "int8", "8bit": "int8_wo", "w4a16": "int4", "int4": "int4",
    "4bit": "int4", "awq": "int4", "gptq": "int4", "bf16": "bf16", "fp16": "fp16",
}  # fmt: skip
#: Start of a name -> that of the known model with the same layers, as their config.json files say.
_SAME_LAYERS = {
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "kimi-k2-thinking": "kimi-k2.5",
    "mistral-small-3.1-24b": "mistral-small-24b-base-2501",
    "mistral-small-3.2-24b": "mistral-small-24b-base-2501",
    "qwen2.5-coder-": "qwen2.5-",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
}
#: Releases with another context than their base: pattern -> ``max_position_embeddings``.
_CONTEXTS = {
    r"qwen3-.*-2507": 262_144,
    r"qwen3-coder-30b": 262_144,
    r"kimi-k2-.*-0905": 262_144,
    r"mistral-small-3\.[12]-24b|deepseek-r1-distill-qwen": 131_072,
}


@dataclass(frozen=True)
class Variant:
    """What a name says.

    Attributes:
        base: Full name of the catalogue's model of the same shapes.
        path: Its config.json.
        names: The name and those left as words were taken off, for published settings.
        scheme: Format of the weights as ``with_precision`` labels it; None where none is named.
        owner: Who published it, in lower case; who published the base where that is unsaid.
        context_tokens: Its context where that is known to differ from the base's.
    """

    base: str
    path: Path
    names: tuple[str, ...]
    scheme: str | None
    owner: str
    context_tokens: int | None

    @property
    def published_as(self) -> str | None:
        """The first of the names under which sampling settings were published."""
        named = (name for name in (*self.names, self.base) if published_generation(name))
        return next(named, None)

    def applied(self, model: ModelSpec, name: str) -> ModelSpec:
        """The base model as this release has it; under its own name where it differs."""
        found = model if self.scheme is None else self._quantized(model, self.scheme)
        found = replace(found, max_position=self.context_tokens or model.max_position)
        return found if found == model else replace(found, name=name)

    def note(self, name: str, model: ModelSpec) -> str:
        """How the name was read, for people, and what to give where that is wrong."""
        context = f", {model.max_position:,} tokens of context" if self.context_tokens else ""
        weights = f", {_formats(model)}" if self.scheme else ""
        return (
            f"{name} is not in the catalogue and read by its name: the layers of {self.base}"
            f"{context}{weights}; give the path of its config.json to be sure"
        )

    def _quantized(self, model: ModelSpec, scheme: str) -> ModelSpec:
        """Weights in the format, with what the owner's releases are known to do otherwise.

        Qwen's fp8 releases have block scales, NVIDIA's static ones and a cache in fp8; others'
        NVFP4 releases cache in 16 bits; Meta's fp8 of a dense model leaves the attention alone
        (Llama-3.1-405B-Instruct-FP8).
        """
        cache = None
        if self.owner == "nvidia" and scheme in ("fp8", "nvfp4"):
            cache = "fp8"
        elif scheme == "nvfp4":
            cache = "bf16"
        if scheme == "fp8":
            scheme = {"qwen": "fp8_block", "nvidia": "fp8_static"}.get(self.owner, scheme)
        found = with_precision(model, scheme, kv_cache=cache)
        if self.owner == "meta-llama" and scheme == "fp8" and model.moe is None:
            formats = replace(found.precisions, attention=model.precisions.lm_head)
            found = replace(found, precisions=formats)
        return found


def find_variant(name: str) -> Variant | None:
    """Read a name by its words; None where no known model is left of it.

    >>> find_variant("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16").base
    'meta-llama/Meta-Llama-3.1-70B'
    >>> find_variant("Qwen/Qwen3-33B-FP8") is None
    True
    """
    owner, _, bare = name.strip("/").lower().rpartition("/")
    words: list[str] = []
    names = [bare]
    while (known := find_in_catalog(_renamed(names[-1]))) is None:
        rest, word = _last_word(names[-1])
        if word not in _SILENT and word not in _FORMATS and not _DATE.fullmatch(word):
            return None
        words.append(word)
        names.append(rest)
    contexts = (tokens for text, tokens in _CONTEXTS.items() if re.match(text, bare))
    owner = owner or known[0].lower().partition("/")[0]
    return Variant(*known, tuple(names), _scheme(words), owner, next(contexts, None))


def _formats(model: ModelSpec) -> str:
    """Formats as a note tells them: attention, the other large part, and the cache."""
    part, form = ("feed-forward", model.precisions.dense_ffn)
    if model.moe is not None:
        part, form = ("experts", model.precisions.experts)
    return (
        f"attention in {model.precisions.attention.name}, {part} in {form.name}, "
        f"KV cache in {model.kv_cache_precision.name}"
    )


def _renamed(bare: str) -> str:
    for start, same in _SAME_LAYERS.items():
        if bare.startswith(start):
            return same + bare.removeprefix(start)
    return bare


def _last_word(bare: str) -> tuple[str, str]:
    """A name without its last word, and that; the word is empty where the name has no other.

    >>> _last_word("llama-3.1-8b-instruct-quantized.w8a8")
    ('llama-3.1-8b-instruct-quantized', 'w8a8')
    """
    parts = re.fullmatch(r"(.+)[-_.]([a-z0-9]+)", bare)
    return (parts[1], parts[2]) if parts else (bare, "")


def _scheme(words: Sequence[str]) -> str | None:
    if "fp8" in words:
        return "fp8_block" if "block" in words else "fp8"
    if "gptq" in words and "int8" in words:
        return "int8_wo"
    return next((_FORMATS[word] for word in words if word in _FORMATS), None)
