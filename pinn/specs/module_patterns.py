"""Names and sizes of weight matrices in checkpoints, and patterns that select matrices by name."""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from functools import cached_property
from math import prod
from typing import NamedTuple

from pinn.errors import PinnError
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import DenseFfnSpec, FeedForward, LatentAttentionSpec, LayerPart, Mixer

KINDS = ("attention", "dense_ffn", "experts", "shared_experts")
#: All names of one weight matrix in different checkpoints.
Aliases = tuple[str, ...]

_HOLDERS = ("model.", "language_model.model.", "model.language_model.", "backbone.", "")
_PREFIXES = tuple(f"{holder}layers." for holder in _HOLDERS)
#: Regular expressions that find quantifiers in a user's pattern, and quantified groups that contain
#: a quantifier.
_REPEATS = re.compile(r"(?<!\\)(?:[*+]|\{\d*,?\d*\})")
_NESTED_REPEATS = re.compile(r"(?<!\\)[*+}]\??[^()]*\)+(?:[*+]|\{)")
_MOST_REPEATS = 6
#: Names of a recurrent layer's wide matrices, which determine its format. Its narrow matrices
#: (gates, step sizes) do not.
_LINEAR_PROJECTIONS = (
    ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv", "mixer.in_proj", "mamba.in_proj",
     "self_attn.q_proj", "self_attn.qkv_proj"),
    ("linear_attn.out_proj", "mixer.out_proj", "mamba.out_proj", "self_attn.o_proj",
     "self_attn.out_proj"),
)  # fmt: skip
_ATTENTION = ("self_attn", "mixer")
_FFN = ("mlp", "feed_forward", "block_sparse_moe", "ffn", "mixer")
_PROJECTIONS = (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))


class Matrix(NamedTuple):
    """A weight matrix or, for experts, all matrices with the same name in a layer.

    Attributes:
        aliases: All names that checkpoints give to the matrix.
        size: Number of elements, relative to other matrices of the same weight type.
    """

    aliases: Aliases
    size: float


def module_names(parts: Sequence[LayerPart], hidden: int) -> dict[str, list[Matrix]]:
    """Return the matrices of all layers by weight type; expert 0 represents all experts."""
    found: dict[str, list[Matrix]] = {kind: [] for kind in KINDS}
    for layer, mixer, ffn, _ in parts:
        for suffixes, size in () if mixer is None else _mixer_projections(mixer, hidden):
            found["attention"].append(Matrix(_aliases(layer, suffixes), size))
        for projections in () if ffn is None else _PROJECTIONS[not ffn.gated :]:
            for kind, infixes, width in _ffn_parts(ffn):
                found[kind].append(Matrix(_ffn_aliases(layer, infixes, projections), width))
    return found


def _ffn_parts(ffn: FeedForward | None) -> Iterator[tuple[str, Aliases, float]]:
    """Yield (weight type, names within the feed-forward part, width) of each network in it."""
    if isinstance(ffn, DenseFfnSpec):
        yield "dense_ffn", ("",), ffn.width
    elif ffn is not None:
        yield "experts", (".experts.0",), ffn.width
        if ffn.shared_width:
            yield "shared_experts", (".shared_expert", ".shared_experts"), ffn.shared_width


def _mixer_projections(mixer: Mixer, hidden: int) -> list[tuple[Aliases, float]]:
    """Return (names in a layer, number of elements) of each matrix of attention or recurrence."""
    if isinstance(mixer, LinearMixerSpec):
        sizes = [float(prod(each.shape())) for each in mixer.projections(hidden)]
        return list(zip(_LINEAR_PROJECTIONS, (sum(sizes[:-1]), sizes[-1]), strict=True))
    queries = mixer.heads * mixer.head_dim
    wide: dict[str, float]
    if not isinstance(mixer, LatentAttentionSpec):
        keys = mixer.kv_heads * mixer.head_dim
        wide = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": queries}
    else:
        rank, up = mixer.q_lora_rank, mixer.qk_nope_head_dim + mixer.v_head_dim
        wide = {"q_proj": queries} if rank is None else {"q_a_proj": rank}
        wide |= {} if rank is None else {"q_b_proj": rank * queries / hidden}
        wide |= {
            "kv_a_proj_with_mqa": mixer.kv_width,
            "kv_b_proj": mixer.kv_lora_rank * mixer.heads * up / hidden,
            "o_proj": mixer.heads * mixer.v_head_dim,
        }
    return [
        (tuple(f"{holder}.{name}" for holder in _ATTENTION), float(hidden * width))
        for name, width in wide.items()
    ]


def _ffn_aliases(layer: int, infixes: Iterable[str], projections: Iterable[str]) -> Aliases:
    return _aliases(layer, (f"{f}{i}.{p}" for f in _FFN for i in infixes for p in projections))


def _aliases(layer: int, suffixes: Iterable[str]) -> Aliases:
    return tuple(f"{prefix}{layer}.{suffix}" for suffix in suffixes for prefix in _PREFIXES)


class ModulePatterns:
    """Patterns of compressed-tensors, ModelOpt, AWQ, GPTQ and fp8 that select matrices by name.

    - ``re:PATTERN`` is a regular expression that matches from the start of the name.
    - ``*`` and ``?`` are wildcards; a match selects everything below the matched name, too.
    - ``Linear`` selects every matrix.
    - Other patterns are sequences of whole dotted components: ``self_attn``, ``layers.3.mlp`` or a
      full name. ``gate`` thus selects the router and not ``gate_proj``.
    """

    def __init__(self, patterns: Iterable[str], source: str) -> None:
        texts = tuple(patterns)
        plain = [text for text in texts if not text.startswith("re:")]
        self._wildcards = [text for text in plain if set(text) & set("*?")]
        self._regular = [_compiled(text, source) for text in texts if text.startswith("re:")]
        #: Number of patterns that are regular expressions or contain wildcards.
        self.expressions = len(self._wildcards) + len(self._regular)
        self._runs = frozenset(text.strip(".") for text in plain)
        self._starts = frozenset(run.split(".")[0] for run in self._runs)

    @cached_property
    def _expressions(self) -> list[re.Pattern[str]]:
        """Return the compiled patterns; for speed, all wildcards are in one expression."""
        below = "|".join(translate(name) for w in self._wildcards for name in (w, f"{w}.*"))
        return [*([re.compile(below)] if below else []), *self._regular]

    def match(self, aliases: Aliases) -> bool:
        """Return whether the patterns select a matrix under any of its names."""
        return self.is_default or self.names(aliases)

    @property
    def is_default(self) -> bool:
        """Return whether the patterns include ``Linear``, which selects all remaining matrices."""
        return "Linear" in self._runs

    def names(self, aliases: Aliases) -> bool:
        """Return whether a pattern other than ``Linear`` selects the matrix."""
        if not self._runs and not self._regular:
            return False
        return any(self._match_name(name) for name in aliases)

    def _match_name(self, name: str) -> bool:
        parts = name.split(".")
        if not self._starts.isdisjoint(parts) and self._holds_run(parts):
            return True
        return any(expression.match(name) for expression in self._expressions)

    def _holds_run(self, parts: Sequence[str]) -> bool:
        return any(
            ".".join(parts[i:j]) in self._runs
            for i, part in enumerate(parts)
            if part in self._starts
            for j in range(i + 1, len(parts) + 1)
        )


def _compiled(pattern: str, source: str) -> re.Pattern[str]:
    """Compile a pattern; reject nested or numerous repeats, which are slow to match."""
    if len(_REPEATS.findall(pattern)) > _MOST_REPEATS or _NESTED_REPEATS.search(pattern):
        raise PinnError(
            f"{source}: the pattern {pattern!r:.80} repeats more than {_MOST_REPEATS} parts, or "
            "repeats a repeated part: simplify the pattern"
        )
    try:
        return re.compile(pattern.removeprefix("re:"))
    except (re.error, OverflowError, RecursionError) as error:
        raise PinnError(
            f"{source}: the pattern {pattern!r} is no regular expression ({error}): correct the "
            "quantization config"
        ) from error
