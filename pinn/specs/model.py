"""Description of a model: its layers with their sizes, and the number formats of its weights."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from pinn.common.documents import MOST_MODEL_SIZE, check_size, is_finite, json_object, written
from pinn.errors import PinnError, printable
from pinn.specs.audio import AudioReader
from pinn.specs.images import ImageReader
from pinn.specs.media import Unread
from pinn.specs.mixers import CrossAttentionSpec, IndexerSpec, LinearMixerSpec, Part, Projection
from pinn.specs.precision import Precision, precision

# Sampling settings of requests, which determine the sampler's work in every step.

#: Value of ``--override-generation-config`` for clients that request temperature 0, as most
#: benchmarks do.
GREEDY = '{"temperature": 0}'

#: Sampling values that ``transformers`` 4.57 treats as unset and does not pass to vLLM
#: (``GenerationConfig.to_diff_dict``).
_NOT_SET = {"top_k": 50}
#: Settings that vLLM reads in addition to the fields of ``Sampling``, without effect on step times.
_IGNORED = ("max_new_tokens",)


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of requests; the defaults are vLLM's, which do not restrict tokens.

    Attributes:
        temperature: Sampling temperature; 0 selects the most probable token (greedy).
        top_k: Number of most probable tokens to sample from; 0 or -1 for all.
        top_p: Total probability of the most probable tokens to sample from; 1 for all.
        min_p: Minimum probability of a sampled token, relative to the most probable token's; 0 for
            all.
        repetition_penalty: Divisor of the logits of tokens that occurred before; 1 for no penalty.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        rules = {
            "temperature": (self.temperature >= 0, "0 or more"),
            "top_k": (self.top_k >= -1, "at least -1"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "min_p": (0 <= self.min_p <= 1, "in [0, 1]"),
            "repetition_penalty": (self.repetition_penalty > 0, "positive"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                got = getattr(self, name)
                raise PinnError(f"the sampling setting {name} must be {rule}, got {got}")

    @property
    def is_greedy(self) -> bool:
        """Return whether sampling is greedy, without filtering of tokens (``SamplingParams``)."""
        return self.temperature == 0


_NAMES = tuple(f.name for f in fields(Sampling))


def sampling_from_generation_config(config: Mapping[str, object], source: str) -> Sampling:
    """Return the sampling settings of a generation_config.json, as vLLM 0.15.1 reads the file.

    Only the fields of ``Sampling`` are read (``vllm/config/model.py: get_diff_sampling_param``);
    ``do_sample`` is ignored.

    Args:
        config: Parsed generation_config.json.
        source: File name for error messages.

    Raises:
        PinnError: If a value has the wrong type or is outside its limits.
    """
    found = {n: config[n] for n in _NAMES if n in config and config[n] != _NOT_SET.get(n)}
    return _sampling(found, source)


@lru_cache(maxsize=1024)
def overridden(base: Sampling, override: str) -> Sampling:
    """Return sampling settings with the values of ``--override-generation-config`` applied.

    Args:
        base: Settings without the flag.
        override: JSON object given with the flag, in which null means vLLM's own default; empty
            without the flag.

    Raises:
        PinnError: If the flag is not a JSON object, or has an invalid name or value.

    >>> overridden(Sampling(top_p=0.9), '{"temperature": 0}').is_greedy
    True
    """
    if not override:
        return base
    flag = "--override-generation-config"
    values = json_object(override, flag, GREEDY)
    unknown = [name for name in values if name not in (*_NAMES, *_IGNORED)]
    if unknown:
        known = ", ".join(_NAMES)
        raise PinnError(f"{flag} has unknown keys ({', '.join(unknown)}): use {known}")
    own = {name: getattr(base, name) for name in _NAMES}
    return _sampling(own | {n: v for n, v in values.items() if n in _NAMES}, flag)


def _sampling(values: Mapping[str, Any], source: str) -> Sampling:
    """Return the sampling settings of a JSON object, in which null means vLLM's default."""
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        if not is_finite(value):
            raise PinnError(f"{source}: {name} must be a number, got {written(value)}")
        if name == "top_k" and value != int(value):
            raise PinnError(f"{source}: top_k must be a whole number, got {value}")
        check_size(value, MOST_MODEL_SIZE, f"{source}: {name}", "correct the value")
    try:
        return Sampling(**given | ({"top_k": int(given["top_k"])} if "top_k" in given else {}))
    except PinnError as error:
        raise PinnError(f"{source}: {error}") from error


# Description of a model: shapes, layer plan and number formats.


@dataclass(frozen=True)
class AttentionSpec:
    """Grouped-query attention of one layer.

    Attributes:
        heads: Number of query heads.
        kv_heads: Number of key and value heads. If there are fewer than the TP size, each GPU has a
            copy of one.
        head_dim: Width of a query or key head, which may differ from hidden size / heads.
        window_tokens: Maximum number of keys that a query sees (sliding window or attention chunk);
            None for full attention.
        qk_norm_full_width: Whether q and k are normalized over all heads together. Under tensor
            parallelism this takes an extra all-reduce (MiniMax-M2).
        gate_width: Elements per head that the query projection computes in addition to the query:
            an output gate of the query's width (Qwen3-Next) or of one element, or position weights
            (Inkling).
        shares_cache: Whether the layer uses an earlier layer's keys and values instead of computing
            its own (Gemma-3n).
        v_head_dim: Width of a value head; None if it is the width of a key head (it differs in
            MiMo-V2).
        values_are_keys: Whether a checkpoint has one matrix for keys and values (Gemma 4). Engines
            load this matrix twice (vLLM 0.33.0 models/gemma4.py: Gemma4Attention).
        input_rows: Number of concatenated input vectors, each of the residual stream's width: 2 for
            Zamba (hidden state and embedding), else 1.
        indexer: Indexer that selects the keys of a query; None if a query sees its whole window.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window_tokens: int | None = None
    qk_norm_full_width: bool = False
    gate_width: int = 0
    shares_cache: bool = False
    v_head_dim: int | None = None
    values_are_keys: bool = False
    input_rows: int = 1
    indexer: IndexerSpec | None = None

    @property
    def reach_tokens(self) -> int | None:
        """Return the maximum number of keys that a query sees; None without a limit."""
        return self.window_tokens if self.indexer is None else self.indexer.top_k

    @property
    def value_dim(self) -> int:
        """Return the width of a value head, in elements."""
        return self.v_head_dim or self.head_dim

    @property
    def pair_width(self) -> int:
        """Return the width of a head's key and value together, in elements."""
        return self.head_dim + self.value_dim

    @property
    def kv_width(self) -> int:
        """Return the cached elements per token: keys and values of all KV heads."""
        return self.kv_heads * self.pair_width


@dataclass(frozen=True)
class LatentAttentionSpec:
    """Multi-head latent attention (MLA) of one layer (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    The KV cache has one compressed vector per token, which tensor parallelism does not divide. With
    an indexer the attention is sparse (DeepSeek-V3.2): a query sees the keys that the indexer
    selects.

    Attributes:
        gate_width: Elements per head of the output gate; 0 without a gate.
        shares_cache: Whether the layer uses an earlier layer's cached vectors instead of computing
            its own.
    """

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    window_tokens: int | None = None
    indexer: IndexerSpec | None = None
    gate_width: int = 0
    shares_cache: bool = False

    @property
    def reach_tokens(self) -> int | None:
        """Return the maximum number of keys that a query sees; None without a limit."""
        own = self.indexer
        return self.window_tokens if own is None else own.top_k * own.ratio

    @property
    def kv_heads(self) -> int:
        """Return 1, because a decode attends over one latent head that all queries share."""
        return 1

    @property
    def head_dim(self) -> int:
        """Return the width of a query or key head in prefill, in elements."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def kv_width(self) -> int:
        """Return the number of cached elements per token: the latent vector and the rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class CompressedAttentionSpec(LatentAttentionSpec):
    """DeepSeek-V4's attention to a window of keys and to compressed keys of several tokens each.

    One vector of ``kv_lora_rank`` elements is the key and the value of all heads. Sources: vLLM
    0.20.1's deepseek_v4.py and layers/deepseek_v4_attention.py and deepseek_compressor.py.

    Attributes:
        window_tokens: Number of keys in the window, which are single tokens.
        indexer: Indexer of the model. It has no heads in layers that see all or none of their
            compressed keys. All layers are modeled as if they reached as far as the indexer, with
            the window's keys distributed evenly over this reach. In shorter contexts, time is
            therefore underestimated, never overestimated.
        ratio: Tokens per compressed key; 0 without compressed keys.
        output_groups: Number of groups of heads, each with a separate first output projection.
        output_rank: Output width of the first output projection of a group.
    """

    window_tokens: int = 128
    indexer: IndexerSpec = field(default_factory=lambda: IndexerSpec(1, 0))
    ratio: int = 0
    output_groups: int = 1
    output_rank: int = 0

    @property
    def cached_share(self) -> float:
        """Return the number of compressed keys per token of context."""
        return 1 / self.ratio if self.ratio else 0.0

    @property
    def key_shares(self) -> tuple[float, float]:
        """Return how many keys a query sees per context token, within reach and at any distance.

        The first number counts keys of the window and keys that the indexer selects. The second
        counts compressed keys that are seen without a selection.
        """
        picked = self.cached_share * bool(self.indexer.heads)
        return self.window_tokens / (self.reach_tokens or 1) + picked, self.cached_share - picked

    @property
    def kv_width(self) -> int:
        """Return the bytes of a cached key: 64 elements have 16 bits, and all others 8 bits.

        vLLM has no other format (kv_cache_interface.py, MLAAttentionSpec.real_page_size_bytes).
        """
        return self.kv_lora_rank + 64 + 8

    @property
    def summands(self) -> int:
        """Return the number of gated vectors that a token adds to the keys that compress it."""
        return 4 if self.indexer.heads else 2 * bool(self.ratio)

    @property
    def request_bytes(self) -> float:
        """Return the bytes that a request's cache has at any context length, per layer.

        These are the keys in the window, and fp32 sums for compressed keys that are incomplete.
        Source: deepseek_compressor.py, CompressorStateCache.
        """
        widths = self.kv_lora_rank + self.indexer.head_dim * bool(self.indexer.heads)
        unfinished = self.ratio * self.summands**2 / 2 * widths * 4.0
        return self.window_tokens * self.kv_width + unfinished

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Return the weight matrices, first the 16-bit ones from which keys are computed."""
        width, rank, everything = self.kv_lora_rank, self.q_lora_rank or 0, Part(1, hidden_size)
        grouped = Part(self.output_groups, self.output_rank)
        return (
            Projection("fused_wqa_wkv", (Part(1, rank + (1 + self.summands) * width),), everything),
            Projection("q_b_proj", (Part(self.heads, width),), Part(1, rank)),
            Projection("wo_a", (grouped,), Part(1, self.heads // self.output_groups * width)),
            Projection("o_proj", (everything,), grouped),
            *self.indexer.projections(hidden_size, rank),
        )


@dataclass(frozen=True)
class DenseFfnSpec:
    """A dense feed-forward layer, described by its inner width.

    A gated layer has three matrices, any other layer has two.
    """

    width: int
    gated: bool = True


@dataclass(frozen=True)
class MoeFfnSpec:
    """A mixture-of-experts layer.

    Attributes:
        experts: Number of routed experts.
        top_k: Number of routed experts that each token uses.
        width: Inner width of one routed expert.
        shared_width: Inner width of all shared experts together; 0 without shared experts.
        gated: Whether an expert has a gate matrix in addition to its up and down matrices.
        latent_width: Input and output width of routed experts that compute on a projection of the
            residual stream (Nemotron-3's ``moe_latent_size``); None if they compute on the stream.
        fp32_router: Whether the router's weights and products are in fp32, not in 16 bits.
    """

    experts: int
    top_k: int
    width: int
    shared_width: int = 0
    gated: bool = True
    latent_width: int | None = None
    fp32_router: bool = False

    def stream_width(self, hidden_size: int) -> int:
        """Return the input and output width of a routed expert."""
        return hidden_size if self.latent_width is None else self.latent_width


#: Types of a layer's attention, of its attention or recurrence, and of its feed-forward part.
Attention = AttentionSpec | LatentAttentionSpec
Mixer = Attention | LinearMixerSpec | CrossAttentionSpec
FeedForward = DenseFfnSpec | MoeFfnSpec


class LayerPart(NamedTuple):
    """One attention or recurrent part and one feed-forward part: a layer or half a double layer.

    Attributes:
        layer: Index of the layer in the config, from 0.
        mixer: Attention or recurrent part; None for a feed-forward part alone.
        ffn: Feed-forward part; None for an attention or recurrent part alone.
        again: Whether this part reuses the weights of an earlier layer.
    """

    layer: int
    mixer: Mixer | None
    ffn: FeedForward | None
    again: bool = False


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one shape: their number, attention or recurrent part, and feed-forward part.

    Nemotron-H's layers have only one of the two parts. A Falcon-H1 layer, with attention and Mamba
    in parallel, counts as two layers. Layers that run ``again`` reuse the weights of other layers,
    but cache their own keys and values.
    """

    count: int
    attention: Mixer | None
    ffn: FeedForward | None
    again: bool = False

    @property
    def halves(self) -> int:
        """Return the number of parts of a layer: attention or recurrence, and feed-forward.

        Each part has its own norm and all-reduce.
        """
        return (self.attention is not None) + (self.ffn is not None)

    @property
    def runs(self) -> bool:
        """Return whether text tokens are computed in these layers; not in cross-attention."""
        return not isinstance(self.attention, CrossAttentionSpec)


@dataclass(frozen=True)
class WeightPrecisions:
    """Number formats of a model's weights, by type of matrix."""

    attention: Precision = field(default_factory=lambda: precision("bf16"))
    dense_ffn: Precision = field(default_factory=lambda: precision("bf16"))
    experts: Precision = field(default_factory=lambda: precision("bf16"))
    shared_experts: Precision = field(default_factory=lambda: precision("bf16"))
    lm_head: Precision = field(default_factory=lambda: precision("bf16"))


@dataclass(frozen=True)
class ModelSpec:
    """A language model from a serving engine's perspective: layers, sizes and number formats.

    A model with several shapes of experts is refused, because step features support only one. All
    windows are modeled as if they were as wide as the widest one, with the keys of narrower windows
    distributed evenly over it. In contexts shorter than the widest window, the time of narrower
    windows is therefore underestimated, never overestimated.

    Attributes:
        name: Name under which the model was loaded, used in output only.
        model_type: ``model_type`` of the config. The type also decides which layers quantized
            releases of this family leave in 16 bits.
        hidden_size: Width of the residual stream.
        vocab_size: Rows of the embedding and of the output head.
        layer_groups: Layers by shape.
        precisions: Number format of each type of weight matrix.
        kv_cache_precision: Format of the KV cache that the checkpoint specifies.
        tied_embeddings: Whether the output head reuses the embedding matrix.
        max_position: Maximum context length in tokens.
        extra_parameters: Number of weights outside all matrices (biases, norms, position tables).
        lookup_parameters: Number of weights in tables from which a token reads one row (Gemma-3n's
            per-layer embeddings).
        side_projections: Matrices outside the layers by which every token is multiplied, each with
            their number.
        streams: Number of residual streams that each half of a layer mixes (DeepSeek-V4); 0 for
            models with a single stream.
        sampling: Sampling settings of the generation_config.json; without one, vLLM's defaults.
        asked_as: Name by which the user requested the model, for headings; ignored when models are
            compared.
        left_out: Description of the parts of a multimodal model that no step includes; empty for a
            text model.
        encoder_parameters: Number of weights of the encoders of images and audio, with projectors.
        pooled: Whether the model returns embeddings or scores, without output head and sampler.
        images: Conversion of images into tokens, or why it is unknown; None without images.
        audio: Conversion of audio clips into tokens, or why it is unknown; None without audio.
        bidirectional: Whether a token attends to the whole prompt, including later tokens.
    """

    name: str
    model_type: str
    hidden_size: int
    vocab_size: int
    layer_groups: tuple[LayerGroup, ...]
    precisions: WeightPrecisions = field(default_factory=WeightPrecisions)
    kv_cache_precision: Precision = field(default_factory=lambda: precision("bf16"))
    tied_embeddings: bool = False
    max_position: int = 4096
    extra_parameters: int = 0
    lookup_parameters: int = 0
    side_projections: tuple[tuple[int, Projection], ...] = ()
    streams: int = 0
    reread_rows: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    asked_as: str = field(default="", compare=False)
    left_out: str = field(default="", compare=False)
    encoder_parameters: int = field(default=0, compare=False)
    images: ImageReader | Unread | None = field(default=None, compare=False)
    audio: AudioReader | Unread | None = field(default=None, compare=False)
    pooled: bool = False
    bidirectional: bool = False

    def __post_init__(self) -> None:
        for name in ("name", "model_type", "asked_as"):
            object.__setattr__(self, name, printable(getattr(self, name)))
        for name in ("hidden_size", "vocab_size", "max_position"):
            if getattr(self, name) <= 0:
                got = getattr(self, name)
                raise PinnError(f"{name} of the model {self.name} must be positive, got {got}")
        if not self.layer_groups:
            raise PinnError(f"the model {self.name} has no layers, expected at least one")
        shapes = {g.ffn for g in self.layer_groups if isinstance(g.ffn, MoeFfnSpec)}
        if len(shapes) > 1:
            raise PinnError(
                f"the mixture-of-experts layers of the model {self.name} have {len(shapes)} "
                "shapes, expected one"
            )

    def __hash__(self) -> int:
        # Models are often looked up in caches, so hash only fields that distinguish nearly all
        # models.
        of = self.precisions
        formats = of.attention.name, of.dense_ffn.name, of.experts.name
        return hash((self.name, self.hidden_size, self.vocab_size, self.extra_parameters, formats))

    @property
    def title(self) -> str:
        """Return the model's name for headings: as given by the user, or else its own."""
        return self.asked_as or self.name

    @property
    def layers(self) -> int:
        """Return the number of layers; an attention or feed-forward part alone counts as half."""
        return -(-sum(g.count * g.halves for g in self.layer_groups) // 2)

    @cached_property
    def moe(self) -> MoeFfnSpec | None:
        """Return the mixture-of-experts shape of the model; None for a dense model."""
        return next((g.ffn for g in self.layer_groups if isinstance(g.ffn, MoeFfnSpec)), None)

    @property
    def moe_layers(self) -> int:
        """Return the number of layers with routed experts."""
        return sum(g.count for g in self.layer_groups if isinstance(g.ffn, MoeFfnSpec))

    @cached_property
    def window_tokens(self) -> int | None:
        """Return the maximum number of keys that a query sees in layers with a limit, if any.

        The limit is a window, the tokens that an indexer selects or that the selected keys cover,
        or 1 for a recurrent state, which each token reads once. The result is None for a model
        without such layers.
        """
        mixers = (g.attention for g in self.layer_groups if g.attention is not None)
        return max((m.reach_tokens for m in mixers if m.reach_tokens is not None), default=None)

    @cached_property
    def stored(self) -> "ModelSpec":
        """Return the model with each layer only once, since repeated runs take no extra memory."""
        kept = tuple(group for group in self.layer_groups if not group.again)
        return self if kept == self.layer_groups else replace(self, layer_groups=kept)

    @property
    def is_plain(self) -> bool:
        """Return whether all layers are identical: plain attention and a feed-forward part."""
        whole = all(g.ffn is not None and not g.again for g in self.layer_groups)
        names = {mixer_name(g.attention) for g in self.layer_groups}
        shapes = {(m.heads, m.kv_width) for g in self.layer_groups if (m := g.attention)}
        widths = {g.ffn.width for g in self.layer_groups if isinstance(g.ffn, DenseFfnSpec)}
        alike = len(shapes) == 1 and len(widths) <= 1
        return whole and alike and not self.side_projections and names <= _PLAIN


# Description of a model's layers as text.

_LINEAR = {
    "gated_delta": "gated delta net", "kda": "KDA", "lightning": "lightning attention",
    "mamba1": "Mamba-1", "mamba2": "Mamba-2", "convolution": "short convolution",
    "recurrence": "gated recurrence",
}  # fmt: skip


#: Names of DeepSeek-V4's attention types, by number of tokens per compressed key.
_COMPRESSED = {0: "latent window", 4: "compressed sparse attention", 128: "compressed attention"}
#: Names returned by :func:`mixer_name` for attention without recurrence and without key selection.
_PLAIN = {"latent attention", "full attention", "windowed attention"}


def mixer_name(mixer: Mixer | None) -> str:
    """Return the name of a layer's attention or recurrence, such as ``latent attention``."""
    if mixer is None:
        return "no mixer"
    if isinstance(mixer, LinearMixerSpec):
        return _LINEAR[mixer.kind]
    if isinstance(mixer, CrossAttentionSpec):
        return "cross-attention"
    if isinstance(mixer, CompressedAttentionSpec):
        return _COMPRESSED[mixer.ratio]
    if isinstance(mixer, LatentAttentionSpec):
        return "latent attention" if mixer.indexer is None else "sparse latent attention"
    if mixer.indexer is not None:
        return "block-sparse attention"
    return "full attention" if mixer.window_tokens is None else "windowed attention"


def mixer_names(model: ModelSpec) -> str:
    """Describe how many layers have each type of attention or recurrence, and experts.

    >>> from pinn.specs.catalog import load_model
    >>> mixer_names(load_model("Qwen/Qwen3-Next-80B-A3B-Instruct"))
    '36 gated delta net, 12 full attention; 48 with experts'
    >>> mixer_names(load_model("Qwen/Qwen3-8B"))
    '36 full attention'
    """
    counts = Counter[str]()
    for group in model.layer_groups:
        if group.attention is not None:
            counts[mixer_name(group.attention)] += group.count
    text = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{text}; {model.moe_layers} with experts" if model.moe_layers else text
