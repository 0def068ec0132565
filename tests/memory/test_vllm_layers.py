"""Layers cache as many bytes as vLLM's own layers say, for more than 40 architectures.

The command that records them anew is in record_vllm_layers.py.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from spec_cases import CONFIGS, MODELS, config_of

from pinn.memory.kv_layout import CacheBytes, layer_kv_bytes
from pinn.specs.catalog import load_model
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import LatentAttentionSpec

RECORDED = json.loads(Path(__file__).with_name("vllm_layers.json").read_text())
SIXTEEN_BITS = CacheBytes(2.0, packs_sparse=False)


def _layers(model):
    """Return how many caches there are of each size, in bytes of a token, or of a state."""
    found = Counter()
    for group in model.layer_groups:
        mixer = group.attention
        if isinstance(mixer, LinearMixerSpec):
            found["state", mixer.state_bytes()] += group.count
            continue
        size = layer_kv_bytes(group, 1, SIXTEEN_BITS)
        indexer = mixer.indexer if isinstance(mixer, LatentAttentionSpec) else None
        index = indexer.key_bytes if indexer else 0.0
        for each in filter(None, (size - index, index)):
            found["windowed" if mixer.window_tokens else "full", each] += group.count
    return found


def _recorded(name):
    kinds = {"MambaSpec": "state", "SlidingWindowSpec": "windowed"}
    kinds["ChunkedLocalAttentionSpec"] = "windowed"
    found = Counter()
    for kind, count, size in RECORDED[name]:
        found[kinds.get(kind, "full"), size] += count
    return found


@pytest.mark.parametrize("name", [*MODELS, *CONFIGS])
def test_layers_cache_what_vllms_do(name):
    model = load_model(name if name in MODELS else config_of(name))
    assert _layers(model) == _recorded(name)


def test_more_than_forty_architectures_are_compared():
    classes = {*MODELS.values(), *(architecture for architecture, _ in CONFIGS.values())}
    assert len(classes) > 40
    assert set(RECORDED) == {*MODELS, *CONFIGS, "release"}
