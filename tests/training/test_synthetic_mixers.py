"""Synthetic models have the mixers of published ones, in whole layers, and features tell them."""

from collections import Counter

import numpy as np
import pytest

from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import CompressedAttentionSpec
from pinn.surrogate.featurizer import model_descriptors
from pinn.training.synthetic_mixers import SHARES, STREAMS
from pinn.training.synthetic_models import synthetic_model


@pytest.fixture(scope="module")
def models():
    draw = np.random.default_rng(5)
    return [synthetic_model(draw, f"synthetic-{i}") for i in range(1500)]


def kind_of(model):
    mixers = [group.attention for group in model.layer_groups]
    if any(isinstance(mixer, LinearMixerSpec) for mixer in mixers):
        return "hybrid"
    if any(isinstance(mixer, CompressedAttentionSpec) for mixer in mixers):
        return "compressed"
    return "indexed" if any(getattr(mixer, "indexer", None) for mixer in mixers) else "plain"


def test_kinds_come_in_their_shares(models):
    counts = Counter(map(kind_of, models))
    for share, draw in SHARES:
        assert counts[draw.__name__] / len(models) == pytest.approx(share, abs=0.03)
    assert all(model.is_plain for model in models if kind_of(model) == "plain")


def test_only_compressed_keys_have_several_streams(models):
    for model in models:
        assert model.streams == STREAMS * (kind_of(model) == "compressed")
        assert all(group.count > 0 for group in model.layer_groups)


def test_features_tell_the_kinds_apart(models):
    for model in models:
        found, kind = model_descriptors(model, 1, 1, 1), kind_of(model)
        assert (found["recurrent_share"] > 0) == (kind == "hybrid")
        assert (found["compressed_share"] > 0) == (kind == "compressed")
        assert kind != "indexed" or found["indexed_share"] > 0
        assert 0 < found["attention_share"] <= 1
        assert kind != "plain" or found["attention_share"] == 1
