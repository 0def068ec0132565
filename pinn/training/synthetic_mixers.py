"""Layers of synthetic models with recurrent, sparse or compressed attention.

Shapes are sampled around those of published models: hybrids of attention and recurrent layers
(Qwen3-Next, Kimi-Linear, Nemotron-H), attention to keys that an indexer selects (DeepSeek-V3.2,
GLM-5), and attention to compressed keys (DeepSeek-V4).
"""

from collections.abc import Callable, Sequence

import numpy as np

from pinn.specs.mixers import (
    CHUNK_TOKENS,
    COMPRESSION_RATIOS,
    GATED_DELTA,
    INDEXED_RATIO,
    KDA,
    MAMBA2,
    IndexerSpec,
    LinearMixerSpec,
)
from pinn.specs.model import (
    AttentionSpec,
    CompressedAttentionSpec,
    DenseFfnSpec,
    LatentAttentionSpec,
    LayerGroup,
    Mixer,
    MoeFfnSpec,
)

Ffns = Sequence[tuple[int, DenseFfnSpec | MoeFfnSpec]]
Groups = list[LayerGroup]

#: Number of residual streams in a model with compressed keys (``hc_mult`` in DeepSeek-V4's
#: config.json).
STREAMS = 4


def _spread(ffns: Ffns, mixers: Sequence[tuple[float, Mixer]]) -> Groups:
    """Combine each feed-forward part with each mixer, in the given shares of layers.

    A mixer is the attention or recurrent part of a layer.
    """
    found = []
    for count, ffn in ffns:
        left = count
        for share, mixer in mixers[1:]:
            layers = min(round(share * count), left)
            left -= layers
            found += [LayerGroup(layers, mixer, ffn)] if layers else []
        found += [LayerGroup(left, mixers[0][1], ffn)] if left else []
    return found


def _recurrent(draw: np.random.Generator, hidden: int) -> LinearMixerSpec:
    kind = str(draw.choice([GATED_DELTA, MAMBA2, KDA], p=[0.45, 0.35, 0.2]))
    state_bytes = float(draw.choice([2.0, 4.0]))
    if kind == MAMBA2:
        value = int(draw.choice([64, 64, 80]))
        heads = max(round(2 * hidden / value / 16), 1) * 16
        groups, key = int(draw.choice([1, 8])), int(draw.choice([128, 128, 256]))
        return LinearMixerSpec(
            kind, heads, groups, key, value,
            chunk_tokens=CHUNK_TOKENS[kind], state_bytes_per_element=state_bytes,
        )  # fmt: skip
    heads = int(draw.choice([16, 32, 32, 48, 64, 96]))
    keys = heads if kind == KDA else 16
    return LinearMixerSpec(
        kind, heads, keys, 128, 128,
        chunk_tokens=CHUNK_TOKENS[kind], state_bytes_per_element=state_bytes,
    )  # fmt: skip


def hybrid(
    draw: np.random.Generator,
    hidden: int,
    ffns: Ffns,
    attention: AttentionSpec | LatentAttentionSpec,
) -> Groups:
    """Sample the layers of a hybrid model: recurrent layers and attention layers.

    One in three Mamba models has layers that are only a mixer (attention or recurrent state) or
    only a feed-forward part.

    Args:
        draw: Random number generator.
        hidden: Hidden size of the model.
        ffns: Feed-forward parts, each with its number of layers.
        attention: Attention of the layers that are not recurrent.
    """
    mixer = _recurrent(draw, hidden)
    share = float(draw.choice([0.25, 0.25, 0.125, 0.1, 0.5]))
    if mixer.kind == MAMBA2 and draw.random() < 0.35:
        apart = [LayerGroup(count, None, ffn) for count, ffn in ffns]
        layers = sum(count for count, _ in ffns)
        kept = max(round(share * layers), 1)
        own = LayerGroup(max(layers - kept, 1), mixer, None)
        return [own, *apart, LayerGroup(kept, attention, None)]
    return _spread(ffns, [(1 - share, mixer), (share, attention)])


def indexed(draw: np.random.Generator, ffns: Ffns) -> Groups:
    """Sample layers with latent attention to keys that an indexer selects.

    In three of ten models, some layers reuse the keys that an earlier layer's indexer selected.
    """
    heads, rank = int(draw.choice([64, 64, 128])), int(draw.choice([1536, 2048]))
    nope, value = int(draw.choice([128, 192])), int(draw.choice([128, 256]))
    own = IndexerSpec(2048, int(draw.choice([32, 64])))
    mixers: list[tuple[float, Mixer]] = [
        (1.0, LatentAttentionSpec(heads, rank, 512, nope, 64, value, indexer=own))
    ]
    if draw.random() < 0.3:
        taken = LatentAttentionSpec(
            heads, rank, 512, nope, 64, value, indexer=IndexerSpec(own.top_k, 0)
        )
        mixers.append((float(draw.choice([0.5, 0.75])), taken))
    return _spread(ffns, mixers)


def compressed(draw: np.random.Generator, ffns: Ffns) -> Groups:
    """Sample layers with attention to compressed keys.

    The layers have three compression ratios. In layers with the second ratio, an indexer selects
    the keys.
    """
    heads, rank = int(draw.choice([64, 128])), int(draw.choice([1024, 1536]))
    groups, picked = int(draw.choice([8, 16])), int(draw.choice([512, 1024]))

    def mixer(ratio: int) -> CompressedAttentionSpec:
        indexer = IndexerSpec(picked, 64 * (ratio == INDEXED_RATIO), ratio=INDEXED_RATIO)
        return CompressedAttentionSpec(
            heads, rank, 512, 512, 0, 512, indexer=indexer, ratio=ratio,
            output_groups=groups, output_rank=1024,
        )  # fmt: skip

    window, chosen, coarse = map(mixer, COMPRESSION_RATIOS)
    return _spread(ffns, [(0.5, coarse), (0.5, chosen), (0.05, window)])


#: Share of synthetic models, and function that samples their layers. The shares are assumptions.
#: All other models have only full or sliding-window attention.
SHARES: tuple[tuple[float, Callable[..., Groups]], ...] = (
    (0.14, hybrid), (0.08, indexed), (0.07, compressed),
)  # fmt: skip
