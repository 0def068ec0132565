"""Mixers that are not attention over all keys: recurrent states, indexers, and cross-attention.

A mixer with a recurrent state (linear attention, state spaces) keeps per request and head a matrix
of ``key_dim x value_dim`` instead of keys and values: each token reads and writes it once, however
long the context.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from pinn.specs.config_fields import ConfigFields
from pinn.specs.precision import ACTIVATION_BYTES

GATED_DELTA, KDA, LIGHTNING = "gated_delta", "kda", "lightning"
MAMBA1, MAMBA2 = "mamba1", "mamba2"
CONVOLUTION, RECURRENCE = "convolution", "recurrence"
#: Mixers that work channel by channel: nothing but the values passes their convolution.
_BY_CHANNEL = (MAMBA1, CONVOLUTION, RECURRENCE)

#: Tokens that a chunked scan takes together: flash-linear-attention's kernels 64, Lightning
#: Attention-2 256 (arXiv 2401.04658, block 256), Mamba-2 256 (arXiv 2405.21060; the models' own
#: ``chunk_size`` where stated).
CHUNK_TOKENS = {GATED_DELTA: 64, KDA: 64, LIGHTNING: 256, MAMBA2: 256, MAMBA1: 1}
CHUNK_TOKENS |= {CONVOLUTION: 1, RECURRENCE: 1}

#: Tokens that a key of DeepSeek-V4 may stand for, 0 for none beyond the window; layers of the
#: middle one have an indexer (vLLM 0.20.1's deepseek_v4.py: DeepseekV4Attention).
INDEXED_RATIO = 4
COMPRESSION_RATIOS = (0, INDEXED_RATIO, 128)

#: The selective scan of Mamba-1 multiplies element by element, on units with about a sixteenth of
#: the tensor cores' bf16 rate (H100 SXM datasheet: 67 TFLOP/s fp32 and 989 TFLOP/s bf16).
VECTOR_SLOWDOWN = 16.0


class Part(NamedTuple):
    """Rows of a matrix by heads: tensor parallelism cuts heads, and replicates fewer than GPUs."""

    heads: int
    width: int

    def elements(self, tensor_parallel_size: int = 1) -> int:
        """Rows on one GPU."""
        return max(self.heads // tensor_parallel_size, 1) * self.width


class Projection(NamedTuple):
    """A weight matrix of a mixer, by its parts.

    Attributes:
        name: As in vLLM's model code.
        outputs: Output rows, by heads.
        inputs: Input width, by heads; one head where every GPU sees all of it.
    """

    name: str
    outputs: tuple[Part, ...]
    inputs: Part

    def shape(self, tensor_parallel_size: int = 1) -> tuple[int, int]:
        """Output and input width on one GPU."""
        tp = tensor_parallel_size
        return sum(part.elements(tp) for part in self.outputs), self.inputs.elements(tp)


@dataclass(frozen=True)
class LinearMixerSpec:
    """A mixer with a recurrent state.

    Attributes:
        kind: ``gated_delta`` (Qwen3-Next, arXiv 2412.06464), ``kda`` (Kimi-Linear, arXiv
            2510.26692), ``lightning`` (MiniMax-01, arXiv 2501.08313), ``mamba1`` (arXiv
            2312.00752), ``mamba2`` (arXiv 2405.21060), ``convolution`` alone (LFM2) or
            ``recurrence`` of single channels (RecurrentGemma's RG-LRU, arXiv 2402.19427).
        heads: Value heads, each with a state; Mamba-1's channels.
        key_heads: Heads of keys and queries, shared by groups of value heads (Mamba: groups of B
            and C).
        key_dim: Width of a key: rows of the state.
        value_dim: Width of a value: columns of the state.
        conv_width: Taps of the causal convolution before it; 0 without one.
        step_rank: Rank of Mamba-1's step size; 0 otherwise.
        chunk_tokens: Tokens that the chunked scan takes together.
        state_bytes_per_element: Of the state, as the engine keeps it.
        full_gates: KDA's gates that have one matrix: Kimi-K3's of the output, Bailing's both;
            others have two matrices, of a value's rank.
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
        """The state stands for all tokens before: one thing to read, whatever the context."""
        return 1

    @property
    def kv_heads(self) -> int:
        """Heads of keys and queries."""
        return self.key_heads

    @property
    def head_dim(self) -> int:
        """Width of a value head."""
        return self.value_dim

    def local_widths(self, tensor_parallel_size: int = 1) -> tuple[int, int, int, int]:
        """Heads of keys, their width, heads of values, and their width, on one GPU."""
        tp = tensor_parallel_size
        return max(self.key_heads // tp, 1), self.key_dim, max(self.heads // tp, 1), self.value_dim

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Its weight matrices.

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
        """Channels that the convolution slides over, on one GPU."""
        tp = tensor_parallel_size
        values = Part(self.heads, self.value_dim).elements(tp)
        if self.kind in _BY_CHANNEL:
            return values
        return values + Part(self.key_heads, 2 * self.key_dim).elements(tp)

    @property
    def small_parameters(self) -> int:
        """Convolution, decay, step bias, skip and norm: what no multiplication holds."""
        taps = self.conv_channels() * self.conv_width
        if self.kind == CONVOLUTION:
            return taps
        if self.kind == LIGHTNING:
            return self.heads * self.value_dim
        if self.kind == MAMBA1:
            return taps + self.heads * (self.key_dim + 3)
        return taps + 3 * self.heads + self.heads * self.value_dim

    def state_bytes(self, tensor_parallel_size: int = 1) -> float:
        """What a request keeps in one layer on one GPU: the states and the convolution's tail.

        vLLM's ``MambaStateShapeCalculator``: the tail holds ``conv_width - 1`` tokens.
        """
        tp = tensor_parallel_size
        state = Part(self.heads, self.key_dim * self.value_dim).elements(tp)
        tail = max(self.conv_width - 1, 0) * self.conv_channels(tp)
        return state * self.state_bytes_per_element + tail * ACTIVATION_BYTES

    def token_flop(self) -> float:
        """Operations of one head for one token of a chunked scan, in those of tensor cores.

        With keys of width k, values of width v and chunks of c tokens: scores and their product
        with the values inside a chunk, 2 c (k + v); reading the state and adding to it, 4 k v
        (arXiv 2405.21060, section 6; Mamba-2's scores once per group of heads). The delta rule
        multiplies keys by keys and by their inverse as well, 2 c (2 k + v), and subtracts what
        the state holds already, 2 k v (arXiv 2412.06464, section 3.3). Mamba-1's selective scan
        takes 9 operations per element of the state (arXiv 2312.00752 and its code's count), RG-LRU
        about as many (its equations 1 to 4), and a convolution two a tap and two for its gates.
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
        """Operations of one head for one decoded token, element by element.

        Decay, add the outer product of key and value, and read by the query: 5 per element; the
        delta rule subtracts what the key reads first: 3 more.
        """
        if self.kind == CONVOLUTION:
            return self.token_flop()
        each = 8.0 if self.kind in (GATED_DELTA, KDA) else 5.0
        return each * self.key_dim * self.value_dim * VECTOR_SLOWDOWN

    def token_bytes(self, tensor_parallel_size: int = 1) -> float:
        """Moved for one prefill token on one GPU.

        Convolved channels in and out, the output, and per chunk a state in 16 bits, written and
        read.
        """
        tp = tensor_parallel_size
        moved = 2 * self.conv_channels(tp) + Part(self.heads, self.value_dim).elements(tp)
        if self.kind in _BY_CHANNEL:
            return moved * ACTIVATION_BYTES
        state = Part(self.heads, self.key_dim * self.value_dim).elements(tp)
        return (moved + 2 * state / self.chunk_tokens) * ACTIVATION_BYTES


@dataclass(frozen=True)
class IndexerSpec:
    """The indexer of sparse attention: it scores every key and keeps the best.

    DeepSeek-V3.2-Exp report, section 2.1; vLLM's deepseek_v2.py: Indexer. Every GPU
    has it whole: tensor parallelism does not cut it.

    Attributes:
        top_k: Keys that a query attends to.
        heads: Of the scores; 0 for a layer that takes over the choice of a layer before it.
        head_dim: Width of a key, kept in fp8 with a scale of 4 bytes for 128 elements.
        ratio: Tokens that a key stands for (DeepSeek-V4).
        block: Tokens that are chosen together, by one score of theirs, from keys of 16 bits
            (MiniMax-M3: vLLM 0.33.0 models/minimax_m3/common/indexer.py); 1 for the others.
    """

    top_k: int
    heads: int
    head_dim: int = 128
    ratio: int = 1
    block: int = 1

    @property
    def key_bytes(self) -> float:
        """Cached per token: bytes and their scales (vLLM's DeepseekV32IndexerCache)."""
        if self.block > 1:
            return 2.0 * self.head_dim
        return (self.head_dim + 4 * self.head_dim / 128) / self.ratio if self.heads else 0.0

    @property
    def score_flop(self) -> float:
        """Operations of a (query, token) pair, in fp8; those of 16 bits take twice as long."""
        return 2.0 * self.heads * self.head_dim / self.ratio * (1 + (self.block > 1))

    @property
    def score_bytes(self) -> float:
        """A pair's fp32 score, written and read once by the choice of the best."""
        return 8.0 / self.ratio / self.block if self.heads else 0.0

    def projections(self, hidden_size: int, query_rank: int) -> tuple[Projection, ...]:
        """Its weight matrices: queries from the compressed query, one key, weights of the heads.

        A key of several tokens is a sum of two vectors of each under two gates (vLLM 0.20.1's
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
    """Attention to an image's tokens (Llama-3.2-Vision).

    Engines skip the whole layer for prompts of text (transformers' modeling_mllama.py: a layer
    without cross-attention states is passed over), which is what is predicted here: its weights
    take memory and no time.
    """

    heads: int
    kv_heads: int
    head_dim: int

    window_tokens = None
    kv_width = 0
    reach_tokens = None

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Its weight matrices."""
        mixed = Part(self.heads, self.head_dim), Part(self.kv_heads, 2 * self.head_dim)
        out = Projection("o_proj", (Part(1, hidden_size),), Part(self.heads, self.head_dim))
        return Projection("qkv_proj", mixed, Part(1, hidden_size)), out


def head_width(fields: ConfigFields, heads: int) -> int:
    """Return the width of an attention head, stated or by the model's width.

    Raises:
        PinnError: If the heads do not divide the model's width.
    """
    if fields.get("head_dim") is not None:
        return fields.integer("head_dim")
    hidden = fields.integer("hidden_size")
    if hidden % heads:
        raise fields.error(f"{heads} heads do not divide hidden_size {hidden}: add head_dim")
    return hidden // heads


# The recurrent mixer of each family's config.json.

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def gated_delta_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Qwen3-Next and Qwen3.5 (vLLM's qwen3_next.py: Qwen3NextGatedDeltaNet)."""
    return LinearMixerSpec(
        GATED_DELTA, heads=fields.integer("linear_num_value_heads"),
        key_heads=fields.integer("linear_num_key_heads"),
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv_width=fields.integer("linear_conv_kernel_dim", default=4),
        state_bytes_per_element=stated_state_bytes(fields),
    )  # fmt: skip


def kda_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Kimi-Linear; its state is fp32 (vLLM's mamba_utils.py: kda_state_dtype).

    Gates of one matrix: vLLM 0.33.0 models/kimi_k3/nvidia/kda.py; modeling_bailing_hybrid.py.
    """
    nested, inner = fields.get("linear_attn_config"), fields  # transformers 5 does not nest
    if nested is not None:
        inner = ConfigFields(nested, nested, f"{fields.source}: linear_attn_config")
    heads = inner.integer("linear_num_heads", "num_heads")
    width = inner.integer("linear_head_dim", "head_dim")
    taps = inner.integer("linear_conv_kernel_dim", "short_conv_kernel_size", default=4)
    full = (
        2 if fields.model_type == "bailing_hybrid" else int(bool(inner.get("use_full_rank_gate")))
    )
    kept = CHUNK_TOKENS[KDA], _BYTES["float32"]
    return LinearMixerSpec(KDA, heads, heads, width, width, taps, 0, *kept, full)


def short_convolution(fields: ConfigFields) -> LinearMixerSpec:
    """Return LFM2's mixer (vLLM's layers/mamba/short_conv.py): the convolution's tail is all."""
    channels, taps = fields.integer("conv_dim", "hidden_size"), fields.integer("conv_L_cache")
    return LinearMixerSpec(CONVOLUTION, channels, 1, 0, 1, taps, 0, CHUNK_TOKENS[CONVOLUTION])


def gated_recurrence(fields: ConfigFields) -> LinearMixerSpec:
    """Return RecurrentGemma's mixer, whose state is fp32 (modeling_recurrent_gemma.py)."""
    heads, taps = fields.integer("num_attention_heads"), fields.integer("conv1d_width", default=4)
    width, bytes_ = fields.integer("lru_width", "hidden_size") // heads, _BYTES["float32"]
    return LinearMixerSpec(RECURRENCE, heads, 1, 1, width, taps, 0, 1, bytes_)


def lightning_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """MiniMax-01 (vLLM's layers/mamba/linear_attn.py), without a convolution.

    Its state has the model's format (mamba_utils.py: linear_attention_state_dtype).
    """
    heads = fields.integer("num_attention_heads")
    width = head_width(fields, heads)
    return LinearMixerSpec(LIGHTNING, heads, heads, width, width, 0, 0, CHUNK_TOKENS[LIGHTNING])


def jamba_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Jamba: Mamba-1."""
    channels = fields.integer("mamba_expand", default=2) * fields.integer("hidden_size")
    return _mamba1(fields, channels, "mamba_d_state", "mamba_d_conv", "mamba_dt_rank")


def mamba1_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Mamba and Falcon-Mamba."""
    usual = 2 * fields.integer("hidden_size")
    channels = fields.integer("intermediate_size", "d_inner", default=usual)
    return _mamba1(fields, channels, "state_size", "conv_kernel", "time_step_rank")


def _mamba1(
    fields: ConfigFields, channels: int, state: str, taps: str, rank: str
) -> LinearMixerSpec:
    stated = fields.get(rank)
    default = -(-fields.integer("hidden_size") // 16)  # "auto", as Mamba's own code
    return LinearMixerSpec(
        MAMBA1, heads=channels, key_heads=1, key_dim=fields.integer(state, default=16), value_dim=1,
        conv_width=fields.integer(taps, default=4),
        step_rank=default if stated in (None, "auto") else fields.integer(rank),
        chunk_tokens=CHUNK_TOKENS[MAMBA1], state_bytes_per_element=stated_state_bytes(fields),
    )  # fmt: skip


def _mamba2(
    heads: str, width: str, state: str, groups: str, fields: ConfigFields
) -> LinearMixerSpec:
    return LinearMixerSpec(
        MAMBA2, heads=fields.integer(heads), key_heads=fields.integer(groups, default=1),
        key_dim=fields.integer(state), value_dim=fields.integer(width),
        conv_width=fields.integer("mamba_d_conv", "conv_kernel", default=4),
        chunk_tokens=fields.integer("mamba_chunk_size", "chunk_size", default=CHUNK_TOKENS[MAMBA2]),
        state_bytes_per_element=stated_state_bytes(fields),
    )  # fmt: skip


#: Mamba-2 of Granite-4, Bamba and Falcon-H1, of Nemotron-H and Nemotron-3, by itself, of Zamba2.
granite_mixer = partial(_mamba2, "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups")
nemotron_mixer = partial(_mamba2, "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")
mamba2_mixer = partial(_mamba2, "num_heads", "head_dim", "state_size", "n_groups")
zamba_mixer = partial(_mamba2, "n_mamba_heads", "mamba_headdim", "mamba_d_state", "mamba_ngroups")


def stated_state_bytes(fields: ConfigFields) -> float:
    """Bytes of an element: what the config asks for, else the model's 16 bits.

    vLLM's ``--mamba-ssm-cache-dtype auto`` (v1 config/cache.py) does the same.
    """
    stated: object = fields.get("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if stated is None:
        return _BYTES["bfloat16"]
    if not isinstance(stated, str) or stated not in _BYTES:
        raise fields.misfit("mamba_ssm_dtype", f"be one of {', '.join(_BYTES)}", stated)
    return _BYTES[stated]
