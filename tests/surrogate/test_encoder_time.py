"""Time that images add to steps: values by hand, and laws."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.batch import parse_batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.images import request_images
from pinn.specs.serving import ServingSpec
from pinn.surrogate.encoder_time import EncoderTime, asked_encoder, encoder_time
from pinn.surrogate.step_features import STEP_FEATURES

VL = "Qwen/Qwen3-VL-8B-Instruct"
MODEL = load_model(VL)


def timed(size, tp=1, count=1, gpu="H100"):
    served = Deployment(MODEL, load_gpu(gpu), ServingSpec(tensor_parallel_size=tp))
    return asked_encoder(served, count, size)


def test_no_images_take_no_time():
    assert timed("1024x1024", count=0) is None
    found = timed("1024x1024")
    assert found.seconds(0) == 0
    assert found.of_batch(parse_batch("64 decode @ 5000 + 1 prefill 512 @ 1024")) == 0
    assert found.of_batch(parse_batch("1 prefill 1 @ 0")) == found.first_s


def test_an_image_takes_longer_than_its_arithmetic_and_less_than_four_times_as_long():
    # 27 layers and the embedding see 4,096 patches, the projectors 1,024 tokens.
    own = MODEL.images.encoder
    flop = 2 * (own.layer_weights + 1536 * 1152) * 4096 + 2 * own.projector_weights * 1024
    flop += 4 * 27 * 1152 * 4096**2
    found = timed("1024x1024")
    assert found.floor_s == pytest.approx(flop / 989e12, rel=1e-3)
    assert found.floor_s < found.first_s < 4 * found.floor_s


def test_a_tiny_image_takes_as_long_as_its_launches():
    assert timed("32x32").first_s == 27 * STEP_FEATURES["launched_layer"].overhead.prior


def test_more_images_take_longer_and_no_longer_than_one_by_one():
    found = timed("512x512")
    seconds = np.array([found.seconds(count) for count in range(1, 9)])
    assert (np.diff(seconds) > 0).all()
    assert (seconds <= found.first_s * np.arange(1, 9)).all()


def test_larger_images_take_no_less():
    found = [timed(f"{edge}x{edge}") for edge in (64, 256, 512, 1024, 2048)]
    assert all(a.first_s <= b.first_s and a.floor_s < b.floor_s for a, b in pairwise(found))


@pytest.mark.parametrize("ranks", [2, 8])
def test_gpus_share_an_image_but_not_without_cost(ranks):
    alone, shared = timed("2048x2048"), timed("2048x2048", ranks)
    assert shared.floor_s == alone.floor_s / ranks
    assert alone.first_s / ranks < shared.first_s < alone.first_s


def test_more_gpus_than_heads_are_refused():
    with pytest.raises(PinnError, match="exceed the 16 attention heads of the vision encoder"):
        timed("64x64", 32)


def test_a_step_pays_for_the_images_that_begin_in_it():
    found = timed("1024x1024", count=3)
    whole = found.of_batch(parse_batch("1 prefill 3072 @ 0"))
    assert whole == found.first_s + 2 * found.further_s
    chunks = [found.of_batch(parse_batch(f"1 prefill 1024 @ {1024 * i}")) for i in range(3)]
    assert chunks == [found.first_s] * 3
    two = found.of_batch(parse_batch("2 prefill 1000 @ 0 + 8 decode @ 100"))
    assert two == found.seconds(2)


def test_the_interval_says_that_nothing_was_measured():
    found = timed("1024x1024")
    low, high = found.ends
    assert high / low == pytest.approx(math.exp(4 * 0.329))
    assert found.to_json()["measured"] is False
    assert "never measured as a whole" in found.sentence
    assert found.scaled(math.log(2)).seconds(3) == pytest.approx(2 * found.seconds(3))


def test_a_text_model_has_no_images():
    served = Deployment(load_model("Qwen/Qwen3-8B"), load_gpu("H100"), ServingSpec())
    with pytest.raises(PinnError, match="has for an image is unknown"):
        asked_encoder(served, 1, "64x64")
    assert encoder_time(served, None) is None


def test_an_encoder_without_heads_cannot_be_timed():
    of = replace(MODEL.images, encoder=replace(MODEL.images.encoder, heads=0))
    served = Deployment(replace(MODEL, images=of), load_gpu("H100"), ServingSpec())
    with pytest.raises(PinnError, match=r"vision encoder of .* is unknown"):
        encoder_time(served, request_images(of, VL, 1, "64x64"))


def test_windows_make_attention_cheaper():
    own = MODEL.images.encoder
    windowed = replace(own, full_layers=4, window_patches=64)
    model = replace(MODEL, images=replace(MODEL.images, encoder=windowed))
    served = Deployment(model, load_gpu("H100"), ServingSpec())
    found = asked_encoder(served, 1, "2048x2048")
    assert isinstance(found, EncoderTime)
    assert found.first_s < 0.8 * timed("2048x2048").first_s
