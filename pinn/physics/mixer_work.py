"""The work of a model's mixers, and the all-reduces around its layers, whatever the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pinn.specs.mixers import MAMBA1, LinearMixerSpec
from pinn.specs.model import (
    Attention,
    AttentionSpec,
    LatentAttentionSpec,
    LayerGroup,
    Mixer,
    ModelSpec,
)
from pinn.specs.precision import ACTIVATION_BYTES


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
