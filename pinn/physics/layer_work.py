"""Work of a model's layers: matrix products, small kernels, attention and recurrent layers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from pinn.specs import model as models
from pinn.specs.mixers import MAMBA1, LinearMixerSpec, Projection
from pinn.specs.model import AttentionSpec, LatentAttentionSpec, LayerGroup, ModelSpec, MoeFfnSpec
from pinn.specs.precision import ACTIVATION_BYTES, FP32_PRODUCT, Precision, precision

# Matrix products of one engine step on one GPU of the tensor-parallel group.


@dataclass(frozen=True)
class MatMul:
    """Weight matrix ``[k, n]`` by which activations ``[rows, k]`` are multiplied.

    Attributes:
        name: Name of the matrix in vLLM's model code, such as ``qkv_proj``.
        n: Output width on one GPU.
        k: Input width on one GPU.
        count: Number of layers that have the matrix.
        weights: Number format of the matrix.
        per_sequence: Whether only the last token of each sequence is multiplied (output head).
    """

    name: str
    n: int
    k: int
    count: int
    weights: Precision
    per_sequence: bool = False

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of the matrix, summed over all layers that have it."""
        return self.count * self.n * self.k * self.weights.bytes_per_weight

    @property
    def flop_per_row(self) -> float:
        """Return the FLOP per row of activations, over all layers: 2 FLOP per weight."""
        return 2.0 * self.count * self.n * self.k


@lru_cache(maxsize=16384)
def dense_matmuls(model: ModelSpec, tensor_parallel_size: int) -> tuple[MatMul, ...]:
    """Return all weight matrices that are applied to a text token, except routed experts.

    Column-parallel and row-parallel splits are as in Megatron-LM (arXiv 1909.08053, section 3),
    which vLLM follows. KV heads are replicated if there are fewer of them than tensor-parallel
    ranks. Biases are omitted.
    """
    found: list[MatMul] = []
    for group in model.layer_groups:
        if group.runs:
            found += _group_matmuls(model, group, tensor_parallel_size)
    for count, projection in model.side_projections:
        found += _projected([projection], count, model.precisions.dense_ffn, tensor_parallel_size)
    if model.pooled:
        return tuple(found)
    width, weights = -(-model.vocab_size // tensor_parallel_size), model.precisions.lm_head
    return *found, MatMul("lm_head", width, model.hidden_size, 1, weights, True)


@lru_cache(maxsize=16384)
def idle_matmuls(model: ModelSpec, tensor_parallel_size: int) -> tuple[MatMul, ...]:
    """Return the weight matrices of layers that text tokens skip; they take memory but no time."""
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
        own = 0 if attention.shares_cache else max(attention.kv_heads // tp, 1)
        width = heads * (attention.head_dim + attention.gate_width) + own * attention.pair_width
        yield MatMul("qkv_proj", width, hidden * attention.input_rows, count, weights)
        yield MatMul("o_proj", hidden, heads * attention.value_dim, count, weights)
        if attention.indexer is not None:
            yield from _projected(attention.indexer.projections(hidden, hidden), count, weights, tp)
        return
    if not isinstance(attention, LatentAttentionSpec) or hasattr(attention, "projections"):
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
    """Yield MLA's matrices: down-projections are replicated, up-projections are split by heads.

    ``heads`` is the number of heads on one rank. ``kv_b_proj`` also stands for its absorbed form in
    decode, which multiplies queries into the latent space and outputs back. Both forms have the
    same weights and FLOP per token.
    """
    queries, own = heads * attention.head_dim, attention.kv_width * (not attention.shares_cache)
    if attention.q_lora_rank is None:
        yield MatMul("q_proj", queries, hidden, count, weights)
        if own:
            yield MatMul("kv_a_proj", own, hidden, count, weights)
    else:
        yield MatMul("fused_qkv_a_proj", attention.q_lora_rank + own, hidden, count, weights)
        yield MatMul("q_b_proj", queries, attention.q_lora_rank, count, weights)
    if attention.gate_width:
        yield MatMul("g_proj", heads * attention.gate_width, hidden, count, weights)
    up = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    yield MatMul("kv_b_proj", up, attention.kv_lora_rank, count, weights)
    yield MatMul("o_proj", hidden, heads * attention.v_head_dim, count, weights)


def _ffn_matmuls(model: ModelSpec, group: LayerGroup, tp: int) -> Iterator[MatMul]:
    assert group.ffn is not None
    ffn, hidden, formats = group.ffn, model.hidden_size, model.precisions
    if isinstance(ffn, models.DenseFfnSpec):
        yield from _mlp(ffn.width, ffn.gated, hidden, group.count, tp, formats.dense_ffn, "")
        return
    of_router = FP32_PRODUCT if ffn.fp32_router else precision("bf16")
    yield MatMul("router", ffn.experts, hidden, group.count, of_router)
    if ffn.latent_width is not None:  # vLLM nemotron_h.py: fc1_latent_proj, fc2_latent_proj
        yield MatMul("latent_down_proj", ffn.latent_width, hidden, group.count, formats.dense_ffn)
        yield MatMul("latent_up_proj", hidden, ffn.latent_width, group.count, formats.dense_ffn)
    if ffn.shared_width:
        width, weights = ffn.shared_width, formats.shared_experts
        yield from _mlp(width, ffn.gated, hidden, group.count, tp, weights, "shared_")


def _mlp(
    width: int, gated: bool, hidden: int, count: int, tp: int, weights: Precision, prefix: str
) -> Iterator[MatMul]:
    local = -(-width // tp)
    yield MatMul(f"{prefix}gate_up_proj", (1 + gated) * local, hidden, count, weights)
    yield MatMul(f"{prefix}down_proj", hidden, local, count, weights)


def expert_weights(ffn: MoeFfnSpec, hidden_size: int, expert_tensor_parallel_size: int) -> float:
    """Return the number of weights of one routed expert's slice on one GPU, per layer."""
    local = -(-ffn.width // expert_tensor_parallel_size)
    return (2 + ffn.gated) * local * ffn.stream_width(hidden_size)


# Elements that small kernels between matrix products move: norms, rotary embedding, activation
# functions.

#: Number of rows of the hidden size that a norm with residual add reads (two) and writes (two).
#: Each layer has one such norm before its attention (or recurrent) part, and one before its
#: feed-forward part (vllm/model_executor/layers/layernorm.py).
NORM_PASSES = 4.0
#: Passes per half layer over each residual stream of a model with several streams
#: (hyper-connections): a read before the half layer, and a read and a write after it (vLLM 0.20.1
#: model_executor/layers/mhc.py: mhc_pre, mhc_post).
STREAM_PASSES = 3.0
#: Passes of small kernels over the output of a projection: one read and one write, for rotary
#: embedding, norms of queries and keys, and copies into the KV cache.
OUTPUT_PASSES = 2.0
#: Passes of a gated activation function over its input: it reads both halves and writes one half.
GATED_PASSES = 1.5
#: Passes over a matrix product's input that static scales save: the preceding kernel writes the
#: input in fp8, with half the bytes.
STATIC_SAVES = 0.5
#: Matrices whose outputs ``small_kernel_elements`` excludes: those added to the residual stream are
#: counted with the norms, and the router's output is small.
_COUNTED = ("o_proj", "out_proj", "down_proj", "router")


@lru_cache(maxsize=16384)
def small_kernel_elements(model: ModelSpec, tensor_parallel_size: int) -> float:
    """Return the 16-bit elements that small kernels move per token on one GPU, in all layers.

    Small kernels are norms, rotary embedding, activation functions and copies between matrix
    products. Tensor parallelism splits all of them except norms. Kernels around routed experts are
    counted separately (``expert_activation_token_s``). The time of quantizing a matrix product's
    input is part of the product's time.
    """
    halves = sum(group.count * group.halves for group in model.layer_groups if group.runs)
    matmuls = [m for m in dense_matmuls(model, tensor_parallel_size) if not m.per_sequence]
    passes = NORM_PASSES + STREAM_PASSES * model.streams
    rows = passes * halves + model.reread_rows
    return rows * model.hidden_size + sum(m.count * _moved(m) for m in matmuls)


def _moved(matmul: MatMul) -> float:
    saved = STATIC_SAVES * matmul.k if matmul.weights.static_activations else 0.0
    if matmul.name.endswith(_COUNTED):
        return -saved
    passes = GATED_PASSES if matmul.name.endswith("gate_up_proj") else OUTPUT_PASSES
    return passes * matmul.n - saved


# Work of a model's attention and recurrent layers, and number of short all-reduces, on any GPU.

_OF_MIXERS = (
    "latent_layers", "state_layers", "kv_width", "windowed_kv_width", "state_bytes",
    "index_key_bytes", "index_pair_bytes", "index_flop", "decode_flop", "windowed_decode_flop",
    "prefill_flop", "windowed_prefill_flop", "prefill_token_bytes",
)  # fmt: skip


@lru_cache(maxsize=16384)
def attention_facts(model: ModelSpec, tp: int) -> dict[str, float]:
    """Return the attention work of a model's layers on one of ``tp`` GPUs, and layer counts.

    The result maps fields of ``CostFacts`` to values. Fields with ``windowed`` cover the layers
    whose tokens attend to a limited number of keys: a window, the selection of an indexer, or a
    recurrent state, which counts as one key.
    """
    groups, window = [g for g in model.layer_groups if g.runs], model.window_tokens or 1
    found = dict.fromkeys(_OF_MIXERS, 0.0)
    for group in groups:
        for name, value in _mixer_facts(group.attention, group.count, tp, window).items():
            found[name] += value
    # Batch sums count the (query, key) pairs of causal attention. Bidirectional attention has twice
    # as many. Windowed layers need no factor, because half of a window lies in each direction.
    found["prefill_flop"] *= 1 + model.bidirectional
    return found | {
        "layers": sum(g.count * g.halves for g in groups) / 2,
        "short_all_reduces": float(sum(g.count for g in groups if _reduces_inside(g.attention))),
    }


def _mixer_facts(mixer: models.Mixer | None, count: int, tp: int, window: int) -> dict[str, float]:
    """Return the attention or recurrent work of ``count`` identical layers, by field.

    The fields are those of ``CostFacts``: cached elements and bytes per token, and FLOP per key in
    decode and per (query, key) pair in prefill. Scores and weighted values each take 2 FLOP per
    head and element. MLA decodes in the latent space: for every head, keys have kv_lora_rank + rope
    elements, and values have kv_lora_rank elements. With an indexer, prefills also use the latent
    space, since queries have different keys (vLLM's FlashMLA sparse). If keys are compressed, a
    token counts as a fraction of a key, which differs for tokens within and beyond reach. Queries
    and outputs have the activations' format. ``window`` is the model's widest window in tokens; the
    work per key of a narrower window is scaled by the ratio of the windows.
    """
    if isinstance(mixer, LinearMixerSpec):
        heads, spread = max(mixer.heads // tp, 1) * count, mixer.reach_tokens / window
        return {
            "state_layers": count,
            "state_bytes": spread * 2 * count * mixer.state_bytes(tp),
            # A recurrent state counts as one key of every token, so FLOP per pair are FLOP per
            # token.
            "windowed_decode_flop": spread * heads * mixer.decode_flop(),
            "windowed_prefill_flop": spread * heads * mixer.token_flop(),
            "prefill_token_bytes": count * mixer.token_bytes(tp),
        }
    if not isinstance(mixer, models.Attention):
        return {}
    heads, found = mixer.heads // tp, dict[str, float]()
    if isinstance(mixer, LatentAttentionSpec):
        kv_width: float = mixer.kv_width
        decode_width = 2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim
        prefill_width = mixer.head_dim + mixer.v_head_dim
        found["latent_layers"] = count
        if mixer.indexer is not None:
            prefill_width = decode_width
    else:
        kv_width = max(mixer.kv_heads / tp, 1) * mixer.pair_width
        decode_width = prefill_width = mixer.pair_width
    if mixer.indexer is not None:
        scored = mixer.indexer.score_bytes
        found["index_key_bytes"] = count * (mixer.indexer.key_bytes + scored)
        found["index_pair_bytes"] = count * scored
        found["index_flop"] = count * mixer.indexer.score_flop
    reach = mixer.reach_tokens
    shares = getattr(mixer, "key_shares", (reach / window, 0.0) if reach else (0.0, 1.0))
    for seen, share in zip(("windowed_", ""), shares, strict=True):
        found[f"{seen}kv_width"] = share * count * kv_width
        found[f"{seen}decode_flop"] = share * 2.0 * heads * count * decode_width
        found[f"{seen}prefill_flop"] = share * 2.0 * heads * count * prefill_width
    moved = getattr(mixer, "pair_width", 2 * mixer.head_dim)
    return found | {"prefill_token_bytes": count * heads * moved * ACTIVATION_BYTES}


def head_pair_flop(model: ModelSpec) -> float:
    """Return the attention FLOP of one head per (query, key) pair, summed over layers.

    Only layers of multi-head or grouped-query attention without a limit on keys are counted.
    """
    mixers = ((g.count, g.attention) for g in model.layer_groups if g.runs)
    return sum(
        2.0 * count * mixer.pair_width
        for count, mixer in mixers
        if isinstance(mixer, AttentionSpec) and mixer.indexer is None and not mixer.reach_tokens
    )


def _reduces_inside(mixer: models.Mixer | None) -> bool:
    """Return whether an attention or recurrent layer contains an all-reduce of a few values.

    Examples are a full-width q/k norm, and Mamba-1's projection to step, B and C (vLLM's
    mamba_mixer.py, where x_proj is row-parallel).
    """
    if isinstance(mixer, AttentionSpec):
        return mixer.qk_norm_full_width
    return isinstance(mixer, LinearMixerSpec) and mixer.kind == MAMBA1
