"""Recurrent layers, sparse attention's indexers and cross-attention, with their sizes.

A recurrent layer (linear attention or a state space) caches no keys and values. It keeps a
``key_dim x value_dim`` matrix per request and head, which each token reads and writes once at any
context length.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pinn.specs.config_fields import ConfigFields
from pinn.specs.precision import ACTIVATION_BYTES

GATED_DELTA, KDA, LIGHTNING = "gated_delta", "kda", "lightning"
MAMBA1, MAMBA2 = "mamba1", "mamba2"
CONVOLUTION, RECURRENCE = "convolution", "recurrence"
#: Recurrent layers that process each channel separately. Their convolution covers only the values.
_BY_CHANNEL = (MAMBA1, CONVOLUTION, RECURRENCE)

#: Tokens per chunk of a scan, unless the model has a ``chunk_size``: 64 in flash-linear-attention's
#: kernels, 256 in Lightning Attention-2 (arXiv 2401.04658, block 256) and Mamba-2 (arXiv
#: 2405.21060).
CHUNK_TOKENS = {GATED_DELTA: 64, KDA: 64, LIGHTNING: 256, MAMBA2: 256, MAMBA1: 1}
CHUNK_TOKENS |= {CONVOLUTION: 1, RECURRENCE: 1}

#: Tokens per compressed key in DeepSeek-V4's layers; 0 for layers with only an attention window.
#: Layers with ratio 4 have an indexer (vLLM 0.20.1's deepseek_v4.py: DeepseekV4Attention).
INDEXED_RATIO = 4
COMPRESSION_RATIOS = (0, INDEXED_RATIO, 128)

#: Ratio of the tensor cores' bf16 rate to the rate of element-wise arithmetic, which Mamba-1's
#: selective scan uses: about 16 (H100 SXM datasheet: 989 TFLOP/s bf16 and 67 TFLOP/s fp32).
VECTOR_SLOWDOWN = 16.0


class Part(NamedTuple):
    """Rows or columns of a weight matrix, divided into heads of equal width.

    Tensor parallelism divides the heads, or replicates them so that each GPU has one head.
    """

    heads: int
    width: int

    def elements(self, tensor_parallel_size: int = 1) -> int:
        """Return the number of these rows or columns on one GPU."""
        return max(self.heads // tensor_parallel_size, 1) * self.width


class Projection(NamedTuple):
    """A weight matrix of attention or of a recurrent layer, with its rows and columns by heads.

    Attributes:
        name: Name of the matrix in vLLM's model code.
        outputs: Output rows by heads, with one :class:`Part` per fused matrix.
        inputs: Input columns by heads; one head if every GPU has the whole input.
    """

    name: str
    outputs: tuple[Part, ...]
    inputs: Part

    def shape(self, tensor_parallel_size: int = 1) -> tuple[int, int]:
        """Return (output width, input width) of the matrix on one GPU."""
        tp = tensor_parallel_size
        return sum(part.elements(tp) for part in self.outputs), self.inputs.elements(tp)


@dataclass(frozen=True)
class LinearMixerSpec:
    """A recurrent layer: linear attention, a state space, or a causal convolution.

    Attributes:
        kind: ``gated_delta`` (Qwen3-Next, arXiv 2412.06464), ``kda`` (Kimi-Linear, arXiv
            2510.26692), ``lightning`` (MiniMax-01, arXiv 2501.08313), ``mamba1`` (arXiv
            2312.00752), ``mamba2`` (arXiv 2405.21060), ``convolution`` (LFM2, without other mixing)
            or ``recurrence`` of single channels (RecurrentGemma's RG-LRU, arXiv 2402.19427).
        heads: Number of value heads, each with a state; for Mamba-1, number of channels.
        key_heads: Number of heads of keys and queries, which value heads share (Mamba: groups of B
            and C).
        key_dim: Width of a key, the rows of the state.
        value_dim: Width of a value, the columns of the state.
        conv_width: Number of taps of the causal convolution before the recurrence; 0 without one.
        step_rank: Rank of the projection of Mamba-1's step size; 0 for other types.
        chunk_tokens: Tokens per chunk in which prompts are scanned.
        state_bytes_per_element: Bytes per element of the state in the engine's cache.
        full_gates: Number of KDA's two gates that have one full matrix (1 in Kimi-K3, 2 in
            Bailing). Any other gate has two matrices, with the width of a value head as rank.
    """

    kind: str
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4
    step_rank: int = 0
    chunk_tokens: int = CHUNK_TOKENS[GATED_DELTA]
    state_bytes_per_element: float = ACTIVATION_BYTES
    full_gates: int = 0

    window_tokens = None
    kv_width = 0

    @property
    def reach_tokens(self) -> int:
        """Return 1: a token reads one state, which represents all earlier tokens."""
        return 1

    @property
    def kv_heads(self) -> int:
        """Return the number of heads of keys and queries."""
        return self.key_heads

    @property
    def head_dim(self) -> int:
        """Return the width of a value head, in elements."""
        return self.value_dim

    def local_widths(self, tensor_parallel_size: int = 1) -> tuple[int, int, int, int]:
        """Return the number and width of key heads, then of value heads, on one GPU."""
        tp = tensor_parallel_size
        return max(self.key_heads // tp, 1), self.key_dim, max(self.heads // tp, 1), self.value_dim

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Return the weight matrices of the recurrent layer.

        Sources: vLLM's qwen3_next.py, kimi_linear.py and layers/kda.py, minimax_text_01.py,
        layers/mamba/mamba_mixer.py and mamba_mixer2.py.
        """
        whole, low = Part(1, hidden_size), Part(1, self.value_dim)
        value, keys = Part(self.heads, self.value_dim), Part(self.key_heads, 2 * self.key_dim)
        a_head, out = Part(self.heads, 1), Projection("out_proj", (whole,), value)
        if self.kind == GATED_DELTA:
            mixed = keys, Part(self.heads, 2 * self.value_dim)
            gates = Projection("in_proj_ba", (Part(self.heads, 2),), whole)
            return Projection("in_proj_qkvz", mixed, whole), gates, out
        if self.kind == CONVOLUTION:
            return Projection("in_proj", (Part(self.heads, 3),), whole), out
        if self.kind == RECURRENCE:
            both, block = (Part(self.heads, 2 * self.value_dim),), Part(1, self.value_dim)
            return Projection("in_proj", both, whole), Projection("gates", both, block), out
        if self.kind == KDA:
            wide_gates = keys, *(value,) * (1 + self.full_gates)
            gates_of = ("f", "g")[: 2 - self.full_gates]
            narrow = [Projection(f"{gate}_a_proj", (low,), whole) for gate in gates_of]
            wide = [Projection(f"{gate}_b_proj", (value,), low) for gate in gates_of]
            steps = Projection("b_proj", (a_head,), whole)
            return Projection("in_proj_qkv", wide_gates, whole), *narrow, *wide, steps, out
        if self.kind == LIGHTNING:
            gate = Projection("output_gate", (value,), whole)
            return Projection("in_proj_qkv", (keys, value), whole), gate, out
        if self.kind == MAMBA2:
            mixed = Part(self.heads, 2 * self.value_dim + 1), keys
            return Projection("in_proj", mixed, whole), out
        return (
            Projection("in_proj", (Part(self.heads, 2),), whole),
            Projection("x_proj", (Part(1, self.step_rank + 2 * self.key_dim),), a_head),
            Projection("dt_proj", (a_head,), Part(1, self.step_rank)),
            out,
        )

    def conv_channels(self, tensor_parallel_size: int = 1) -> int:
        """Return the number of channels of the convolution on one GPU."""
        tp = tensor_parallel_size
        values = Part(self.heads, self.value_dim).elements(tp)
        if self.kind in _BY_CHANNEL:
            return values
        return values + Part(self.key_heads, 2 * self.key_dim).elements(tp)

    @property
    def small_parameters(self) -> int:
        """Return the number of other weights: convolution, decay, step bias, skip and norm."""
        taps = self.conv_channels() * self.conv_width
        if self.kind == CONVOLUTION:
            return taps
        if self.kind == LIGHTNING:
            return self.heads * self.value_dim
        if self.kind == MAMBA1:
            return taps + self.heads * (self.key_dim + 3)
        return taps + 3 * self.heads + self.heads * self.value_dim

    def state_bytes(self, tensor_parallel_size: int = 1) -> float:
        """Return the bytes of one request's states and convolution inputs in a layer, on one GPU.

        The convolution needs its last ``conv_width - 1`` inputs (vLLM's
        ``MambaStateShapeCalculator``).
        """
        tp = tensor_parallel_size
        state = Part(self.heads, self.key_dim * self.value_dim).elements(tp)
        tail = max(self.conv_width - 1, 0) * self.conv_channels(tp)
        return state * self.state_bytes_per_element + tail * ACTIVATION_BYTES

    def token_flop(self) -> float:
        """Return the FLOP per head and token of a chunked scan, scaled to the tensor-core rate.

        The FLOP for keys of width k, values of width v and chunks of c tokens are:

        - Scores within a chunk and their product with the values: 2 c (k + v). Mamba-2 computes the
          scores once per group of heads (arXiv 2405.21060, section 6).
        - Reading the state and adding to the state: 4 k v.
        - The delta rule also multiplies keys by keys and by their inverse, 2 c (2 k + v), and
          subtracts the stored values, 2 k v (arXiv 2412.06464, section 3.3).
        - Mamba-1's selective scan: 9 operations per element of the state (arXiv 2312.00752 and the
          count in its code). RG-LRU takes about as many (equations 1 to 4 of its paper).
        - A convolution: two operations per tap, and two for its gates.
        """
        k, v, c = float(self.key_dim), float(self.value_dim), float(self.chunk_tokens)
        if self.kind == CONVOLUTION:
            return 2.0 * (self.conv_width + 1) * VECTOR_SLOWDOWN
        if self.kind in _BY_CHANNEL:
            return 9.0 * k * v * VECTOR_SLOWDOWN
        scores = 2 * c * k * (self.key_heads / self.heads if self.kind == MAMBA2 else 1.0)
        flop = scores + 2 * c * v + 4 * k * v
        if self.kind in (GATED_DELTA, KDA):
            flop += 2 * c * (2 * k + v) + 2 * k * v
        return flop

    def decode_flop(self) -> float:
        """Return the FLOP per head of one decoded token, whose state is updated element by element.

        FLOP are scaled to the tensor-core rate. Decay, adding the outer product of key and value,
        and reading by the query take 5 FLOP per element of the state. The delta rule takes 3 more,
        because it first subtracts the stored value of the key.
        """
        if self.kind == CONVOLUTION:
            return self.token_flop()
        each = 8.0 if self.kind in (GATED_DELTA, KDA) else 5.0
        return each * self.key_dim * self.value_dim * VECTOR_SLOWDOWN

    def token_bytes(self, tensor_parallel_size: int = 1) -> float:
        """Return the bytes of memory traffic per prefill token on one GPU.

        The traffic consists of the inputs and outputs of the convolution, the output of the layer,
        and for each chunk a 16-bit state that is written and read.
        """
        tp = tensor_parallel_size
        moved = 2 * self.conv_channels(tp) + Part(self.heads, self.value_dim).elements(tp)
        if self.kind in _BY_CHANNEL:
            return moved * ACTIVATION_BYTES
        state = Part(self.heads, self.key_dim * self.value_dim).elements(tp)
        return (moved + 2 * state / self.chunk_tokens) * ACTIVATION_BYTES


@dataclass(frozen=True)
class IndexerSpec:
    """Indexer of sparse attention, which scores all keys and selects the top-k keys.

    Sources: DeepSeek-V3.2-Exp report, section 2.1; vLLM's deepseek_v2.py: Indexer. Tensor
    parallelism replicates the indexer on every GPU.

    Attributes:
        top_k: Number of keys to which a query attends.
        heads: Number of scoring heads; 0 for a layer that reuses an earlier layer's selection.
        head_dim: Width of an indexer key, cached in fp8 with a 4-byte scale per 128 elements.
        ratio: Tokens per indexer key (DeepSeek-V4); 1 for other models.
        block: Tokens that share a score and are selected together, with 16-bit keys (MiniMax-M3:
            vLLM 0.33.0 models/minimax_m3/common/indexer.py); 1 for other models.
    """

    top_k: int
    heads: int
    head_dim: int = 128
    ratio: int = 1
    block: int = 1

    @property
    def key_bytes(self) -> float:
        """Return the bytes that the indexer caches per token: its key and the key's scales.

        Source: vLLM's DeepseekV32IndexerCache.
        """
        if self.block > 1:
            return 2.0 * self.head_dim
        return (self.head_dim + 4 * self.head_dim / 128) / self.ratio if self.heads else 0.0

    @property
    def score_flop(self) -> float:
        """Return the FLOP to score a (query, key) pair at the fp8 rate; 16-bit FLOP count twice."""
        return 2.0 * self.heads * self.head_dim / self.ratio * (1 + (self.block > 1))

    @property
    def score_bytes(self) -> float:
        """Return the bytes moved per (query, key) pair: an fp32 score, written and read."""
        return 8.0 / self.ratio / self.block if self.heads else 0.0

    def projections(self, hidden_size: int, query_rank: int) -> tuple[Projection, ...]:
        """Return the indexer's weight matrices: for its queries, its single key and head weights.

        The queries are projected from the compressed query of ``query_rank`` elements. A key that
        covers several tokens is a sum of two gated vectors per token (vLLM 0.20.1's
        deepseek_compressor.py).
        """
        if not self.heads:
            return ()
        everything = Part(1, hidden_size)
        if self.block > 1:
            queries = Projection("index_q", (Part(1, self.heads * self.head_dim),), everything)
            return queries, Projection("index_k", (Part(1, self.head_dim),), everything)
        return (
            Projection("wq_b", (Part(1, self.heads * self.head_dim),), Part(1, query_rank)),
            Projection("wk", (Part(1, self.head_dim * (4 if self.ratio > 1 else 1)),), everything),
            Projection("weights_proj", (Part(1, self.heads),), everything),
        )


@dataclass(frozen=True)
class CrossAttentionSpec:
    """Attention of text tokens to an image's tokens (Llama-3.2-Vision).

    Engines skip the whole layer for text prompts (transformers' modeling_mllama.py). Predictions
    therefore count the memory of the layer's weights, but no time.
    """

    heads: int
    kv_heads: int
    head_dim: int

    window_tokens = None
    kv_width = 0
    reach_tokens = None

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Return the weight matrices of the layer's attention."""
        mixed = Part(self.heads, self.head_dim), Part(self.kv_heads, 2 * self.head_dim)
        out = Projection("o_proj", (Part(1, hidden_size),), Part(self.heads, self.head_dim))
        return Projection("qkv_proj", mixed, Part(1, hidden_size)), out


def head_width(fields: ConfigFields, heads: int) -> int:
    """Return the width of an attention head: ``head_dim``, or else hidden size / heads.

    Raises:
        PinnError: If there is no ``head_dim``, and the heads do not divide the hidden size.
    """
    if fields.get("head_dim") is not None:
        return fields.integer("head_dim")
    hidden = fields.integer("hidden_size")
    if hidden % heads:
        raise fields.error(
            f"the {heads} heads do not divide the hidden_size {hidden}: add the key head_dim"
        )
    return hidden // heads


# Recurrent layer from the fields of a config.json, or from the attributes of a PyTorch module.

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
#: Bytes per element of the state, for types of recurrent layers whose config does not state it
#: (vLLM's mamba_utils.py: kda_state_dtype, linear_attention_state_dtype;
#: modeling_recurrent_gemma.py).
_STATE_BYTES = {KDA: 4.0, RECURRENCE: 4.0, LIGHTNING: 2.0, CONVOLUTION: 2.0}
#: Sizes computed from other keys, by their placeholder word in mixers.json: Mamba-1's channels, and
#: its rank if it is "auto".
_COMPUTED: dict[str, Callable[[ConfigFields], int]] = {
    "(expanded)": lambda f: f.integer("mamba_expand", default=2) * f.integer("hidden_size"),
    "(sixteenth)": lambda f: -(-f.integer("hidden_size") // 16),
    "(head)": lambda f: head_width(f, f.integer("num_attention_heads")),
    "(block)": lambda f: f.integer("lru_width", "hidden_size") // f.integer("num_attention_heads"),
}


def family_mixer(fields: ConfigFields, entry: Mapping[str, Any]) -> LinearMixerSpec:
    """Return the recurrent layer of a config.json whose model family is in mixers.json.

    For KDA gates with a single matrix, see vLLM 0.33.0 models/kimi_k3/nvidia/kda.py and
    modeling_bailing_hybrid.py.
    """
    nested, inner = fields.get("linear_attn_config"), fields  # transformers 5 has no nested config
    if nested is not None:
        inner = ConfigFields(nested, nested, f"{fields.source}: linear_attn_config")
    gates = 2 if fields.model_type == "bailing_hybrid" else bool(inner.get("use_full_rank_gate"))
    found = recurrent_mixer(entry, inner, fields)
    return replace(found, full_gates=int(gates)) if gates else found


def recurrent_mixer(
    entry: Mapping[str, Any], fields: ConfigFields, config: ConfigFields
) -> LinearMixerSpec:
    """Return a recurrent layer, with sizes from the keys that an entry of mixers.json lists.

    Args:
        entry: Entry of mixers.json.
        fields: Fields that contain the sizes of the recurrent layer.
        config: Config.json of the model, which may specify the number format of the state.
    """
    kind = entry["kind"]
    found = {size: _size(fields, names) for size, names in entry["sizes"].items()}
    is_narrow = kind in _BY_CHANNEL
    usual: dict[str, Any] = {
        "key_heads": 1 if is_narrow else found["heads"],
        "value_dim": 1 if is_narrow else found["key_dim"],
        "chunk_tokens": CHUNK_TOKENS[kind],
        "state_bytes_per_element": _STATE_BYTES.get(kind) or stated_state_bytes(config),
    }
    return LinearMixerSpec(kind, **usual | found)


def _size(fields: ConfigFields, names: Sequence[Any]) -> int:
    """Return the size under the first present key, or its default; "auto" counts as absent."""
    *keys, last = names
    if isinstance(last, str) and last not in _COMPUTED:
        return fields.integer(*keys, last)
    default = last if isinstance(last, int) else _COMPUTED[last](fields)
    stated = keys and fields.get(*keys) not in (None, "auto")
    return fields.integer(*keys) if stated else default


def stated_state_bytes(fields: ConfigFields) -> float:
    """Return the bytes per element of recurrent states: from the config, or else 2.

    vLLM's ``--mamba-ssm-cache-dtype auto`` (v1 config/cache.py) follows this rule.
    """
    stated: object = fields.get("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if stated is None:
        return _BYTES["bfloat16"]
    if not isinstance(stated, str) or stated not in _BYTES:
        raise fields.misfit(f"mamba_ssm_dtype must be one of {', '.join(_BYTES)}", stated)
    return _BYTES[stated]
