"""What a layer multiplies and moves: matrices, small kernels, recurrent mixers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pinn.specs.mixers import MAMBA1, LinearMixerSpec, Projection
from pinn.specs.model import (
    Attention,
    AttentionSpec,
    DenseFfnSpec,
    LatentAttentionSpec,
    LayerGroup,
    Mixer,
    ModelSpec,
    MoeFfnSpec,
)
from pinn.specs.precision import ACTIVATION_BYTES, Precision, precision

# The matrix multiplications of one engine step, as one GPU of the group runs them.


@dataclass(frozen=True)
class MatMul:
    """A weight matrix ``[k, n]`` that activations ``[rows, k]`` are multiplied with.

    Attributes:
        name: What it is called in vLLM's model code, such as ``qkv_proj``.
        n: Output width on one GPU.
        k: Input width on one GPU.
        count: How many layers have it.
        weights: Number format of the matrix.
        per_sequence: Whether only the last token of each sequence passes it (the output head).
    """

    name: str
    n: int
    k: int
    count: int
    weights: Precision
    per_sequence: bool = False

    @property
    def weight_bytes(self) -> float:
        """Bytes of all its copies over the layers."""
        return self.count * self.n * self.k * self.weights.bytes_per_weight

    @property
    def flop_per_row(self) -> float:
        """Floating-point operations per row over the layers: a multiply and an add per weight."""
        return 2.0 * self.count * self.n * self.k


@lru_cache(maxsize=16384)
def dense_matmuls(model: ModelSpec, tensor_parallel_size: int) -> tuple[MatMul, ...]:
    """Every multiplication of a text's token but the routed experts'.

    Column-parallel and row-parallel cuts as in Megatron-LM (arXiv 1909.08053, section 3), which
    vLLM follows. KV heads fewer than the tensor-parallel size are replicated. Omits biases.
    """
    found: list[MatMul] = []
    for group in model.layer_groups:
        if group.runs:
            found += _group_matmuls(model, group, tensor_parallel_size)
    for count, projection in model.side_projections:
        found += _projected([projection], count, model.precisions.dense_ffn, tensor_parallel_size)
    head_width = -(-model.vocab_size // tensor_parallel_size)
    found.append(
        MatMul("lm_head", head_width, model.hidden_size, 1, model.precisions.lm_head, True)
    )
    return tuple(found)


@lru_cache(maxsize=16384)
def idle_matmuls(model: ModelSpec, tensor_parallel_size: int) -> tuple[MatMul, ...]:
    """Matrices of layers that a text's token does not pass: they take memory alone."""
    groups = (group for group in model.layer_groups if not group.runs)
    return tuple(m for group in groups for m in _group_matmuls(model, group, tensor_parallel_size))


def _group_matmuls(model: ModelSpec, group: LayerGroup, tp: int) -> Iterator[MatMul]:
    yield from _mixer_matmuls(model, group, tp)
    if group.ffn is not None:
        yield from _ffn_matmuls(model, group, tp)


def _mixer_matmuls(model: ModelSpec, group: LayerGroup, tp: int) -> Iterator[MatMul]:
    attention, count, weights = group.attention, group.count, model.precisions.attention
    hidden = model.hidden_size
    if attention is None:
        return
    heads = attention.heads // tp
    if isinstance(attention, AttentionSpec):
        own = 0 if attention.shares_cache else 2 * max(attention.kv_heads // tp, 1)
        width = (heads * (1 + attention.output_gate) + own) * attention.head_dim
        yield MatMul("qkv_proj", width, hidden, count, weights)
        yield MatMul("o_proj", hidden, heads * attention.head_dim, count, weights)
        return
    if not isinstance(attention, LatentAttentionSpec):
        yield from _projected(attention.projections(hidden), count, weights, tp)
        return
    yield from latent_matmuls(attention, hidden, heads, count, weights)
    if attention.indexer is not None:
        rank = attention.q_lora_rank or hidden
        yield from _projected(attention.indexer.projections(hidden, rank), count, weights, tp)


def _projected(
    projections: Iterable[Projection], count: int, weights: Precision, tp: int
) -> Iterator[MatMul]:
    for projection in projections:
        yield MatMul(projection.name, *projection.shape(tp), count, weights)


def latent_matmuls(
    attention: LatentAttentionSpec, hidden: int, heads: int, count: int, weights: Precision
) -> Iterator[MatMul]:
    """MLA: the two down-projections are replicated, the up-projections are cut by (local) heads.

    ``kv_b_proj`` stands for its absorbed form in decode too: multiplying queries into the latent
    space and outputs back reads the same weights and costs the same operations per token.
    """
    queries = heads * attention.head_dim
    if attention.q_lora_rank is None:
        yield MatMul("q_proj", queries, hidden, count, weights)
        yield MatMul("kv_a_proj", attention.kv_width, hidden, count, weights)
    else:
        fused = attention.q_lora_rank + attention.kv_width
        yield MatMul("fused_qkv_a_proj", fused, hidden, count, weights)
        yield MatMul("q_b_proj", queries, attention.q_lora_rank, count, weights)
    up = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    yield MatMul("kv_b_proj", up, attention.kv_lora_rank, count, weights)
    yield MatMul("o_proj", hidden, heads * attention.v_head_dim, count, weights)


def _ffn_matmuls(model: ModelSpec, group: LayerGroup, tp: int) -> Iterator[MatMul]:
    assert group.ffn is not None
    ffn, hidden, formats = group.ffn, model.hidden_size, model.precisions
    if isinstance(ffn, DenseFfnSpec):
        yield from _mlp(ffn.width, ffn.gated, hidden, group.count, tp, formats.dense_ffn, "")
        return
    yield MatMul("router", ffn.experts, hidden, group.count, precision("bf16"))
    if ffn.latent_width is not None:  # nemotron_h.py: fc1_latent_proj, fc2_latent_proj
        yield MatMul("latent_down_proj", ffn.latent_width, hidden, group.count, formats.dense_ffn)
        yield MatMul("latent_up_proj", hidden, ffn.latent_width, group.count, formats.dense_ffn)
    if ffn.shared_width:
        yield from _mlp(
            ffn.shared_width, ffn.gated, hidden, group.count, tp, formats.shared_experts, "shared_"
        )


def _mlp(
    width: int, gated: bool, hidden: int, count: int, tp: int, weights: Precision, prefix: str
) -> Iterator[MatMul]:
    local = -(-width // tp)
    yield MatMul(f"{prefix}gate_up_proj", (1 + gated) * local, hidden, count, weights)
    yield MatMul(f"{prefix}down_proj", hidden, local, count, weights)


def expert_weights(ffn: MoeFfnSpec, hidden_size: int, expert_tensor_parallel_size: int) -> float:
    """Weights of one routed expert's slice on one GPU."""
    local = -(-ffn.width // expert_tensor_parallel_size)
    return (2 + ffn.gated) * local * ffn.stream_width(hidden_size)


# What kernels between the multiplications move: norms, rotary embedding, activation functions.

#: A norm with the residual's add reads two rows of the hidden size and writes two; one is before
#: each mixer and one before each feed-forward part (vllm/model_executor/layers/layernorm.py).
NORM_PASSES = 4.0
#: What a projection wrote is read and written once more: rotary embedding, norms of queries and
#: keys, copies into the cache.
OUTPUT_PASSES = 2.0
#: A gated activation function reads both halves and writes one.
GATED_PASSES = 1.5
#: Of 16 bits: what static scales save the kernel that writes a multiplication's input in fp8.
STATIC_SAVES = 0.5
#: Their outputs go to the residual stream, which the norms count, or choose experts.
_COUNTED = ("o_proj", "out_proj", "down_proj", "router")


@lru_cache(maxsize=16384)
def small_kernel_elements(model: ModelSpec, tensor_parallel_size: int) -> float:
    """16-bit elements that are read or written for one token on one GPU, over the layers.

    Norms are not cut by tensor parallelism, the rest is. Routed experts are counted apart
    (``expert_activation_token_s``), as is scaling of inputs in each step, which the times of
    multiplications include.
    """
    halves = sum(group.count * group.halves for group in model.layer_groups if group.runs)
    matmuls = [m for m in dense_matmuls(model, tensor_parallel_size) if not m.per_sequence]
    return NORM_PASSES * halves * model.hidden_size + sum(m.count * _moved(m) for m in matmuls)


def _moved(matmul: MatMul) -> float:
    saved = STATIC_SAVES * matmul.k if matmul.weights.static_activations else 0.0
    if matmul.name.endswith(_COUNTED):
        return -saved
    passes = GATED_PASSES if matmul.name.endswith("gate_up_proj") else OUTPUT_PASSES
    return passes * matmul.n - saved


# The work of a model's mixers, and the all-reduces around its layers, whatever the GPU.


@dataclass(frozen=True)
class _PairWork:
    """Cached elements per token, and FLOP per decode key and per prefill pair, over layers."""

    kv_width: float = 0.0
    decode_flop: float = 0.0
    prefill_flop: float = 0.0

    def __add__(self, other: _PairWork) -> _PairWork:
        return _PairWork(
            self.kv_width + other.kv_width,
            self.decode_flop + other.decode_flop,
            self.prefill_flop + other.prefill_flop,
        )


@dataclass(frozen=True)
class _IndexWork:
    """Indexers over layers: bytes per cached token, and bytes and FLOP per pair."""

    key_bytes: float = 0.0
    pair_bytes: float = 0.0
    flop: float = 0.0


@dataclass(frozen=True)
class AttentionWork:
    """What no GPU changes of mixers and of the all-reduces around layers.

    ``windowed`` are layers that see a limited number of keys: a window, the choice of an indexer,
    or a recurrent state, which counts as one key.
    """

    layers: float
    full: _PairWork
    windowed: _PairWork
    state_bytes: float
    index: _IndexWork
    prefill_token_bytes: float
    all_reduces: float
    latent_layers: float
    state_layers: float


@lru_cache(maxsize=16384)
def attention_work(model: ModelSpec, tp: int) -> AttentionWork:
    """Work of a model's layers on one of so many GPUs."""
    groups = [g for g in model.layer_groups if g.runs]
    full, windowed = _PairWork(), _PairWork()
    mixing = [(g.attention, g.count) for g in groups if g.attention is not None]
    for mixer, count in mixing:
        if isinstance(mixer, LinearMixerSpec):
            windowed += _state_work(mixer, count, tp)
        elif isinstance(mixer, Attention) and mixer.reach_tokens is None:
            full += _pair_work(mixer, count, tp)
        elif isinstance(mixer, Attention):
            windowed += _pair_work(mixer, count, tp)
    states = [(m, count) for m, count in mixing if isinstance(m, LinearMixerSpec)]
    return AttentionWork(
        sum(g.count * g.halves for g in groups) / 2,
        full,
        windowed,
        float(sum(2 * count * m.state_bytes(tp) for m, count in states)),
        _index_work(mixing),
        float(sum(_prefill_token_bytes(m, count, tp) for m, count in mixing)),
        sum(_all_reduces(g) * g.count for g in groups) + 1.0,
        float(sum(count for m, count in mixing if isinstance(m, LatentAttentionSpec))),
        float(sum(count for _, count in states)),
    )


def _state_work(mixer: LinearMixerSpec, count: int, tp: int) -> _PairWork:
    """A recurrent mixer's arithmetic: its one "key" is the state, so a pair is a token."""
    heads = max(mixer.heads // tp, 1) * count
    return _PairWork(0.0, heads * mixer.decode_flop(), heads * mixer.token_flop())


def _index_work(mixing: Sequence[tuple[Mixer, int]]) -> _IndexWork:
    found = [
        (m.indexer, count)
        for m, count in mixing
        if isinstance(m, LatentAttentionSpec) and m.indexer is not None
    ]
    return _IndexWork(
        float(sum(count * (each.key_bytes + each.score_bytes) for each, count in found)),
        float(sum(count * each.score_bytes for each, count in found)),
        float(sum(count * each.score_flop for each, count in found)),
    )


def _pair_work(attention: Attention, count: int, tp: int) -> _PairWork:
    """Work of the layers of one shape.

    Scores and weighted values take 2 FLOP per head and element each. MLA decodes in the latent
    space: its keys are kv_lora_rank + rope wide and its values kv_lora_rank, for every head; with
    an indexer prompts do so too, since each query has keys of its own (vLLM's FlashMLA sparse).
    """
    heads = attention.heads // tp
    if isinstance(attention, LatentAttentionSpec):
        kv_width: float = attention.kv_width
        decode_width = attention.kv_width + attention.kv_lora_rank
        prefill_width = attention.head_dim + attention.v_head_dim
        if attention.indexer is not None:
            prefill_width = decode_width
    else:
        kv_width = 2 * max(attention.kv_heads / tp, 1) * attention.head_dim
        decode_width = prefill_width = 2 * attention.head_dim
    flop_per_width = 2.0 * heads * count
    return _PairWork(
        count * kv_width, flop_per_width * decode_width, flop_per_width * prefill_width
    )


def _prefill_token_bytes(mixer: Mixer, count: int, tp: int) -> float:
    """Queries read and outputs written over the layers, in the activations' format."""
    if isinstance(mixer, LinearMixerSpec):
        return count * mixer.token_bytes(tp)
    assert isinstance(mixer, Attention)
    return count * 2 * (mixer.heads // tp) * mixer.head_dim * ACTIVATION_BYTES


def _all_reduces(group: LayerGroup) -> int:
    """One after each part, one more for a full-width q/k norm, one for Mamba-1's step, B and C.

    The last: vLLM's mamba_mixer.py, where x_proj is row-parallel.
    """
    mixer = group.attention
    normed = isinstance(mixer, AttentionSpec) and mixer.qk_norm_full_width
    return group.halves + (normed or (isinstance(mixer, LinearMixerSpec) and mixer.kind == MAMBA1))
