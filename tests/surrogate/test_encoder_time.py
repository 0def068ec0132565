"""Time that images add to steps: values by hand, and laws."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pinn.api.requests import PredictionRequest
from pinn.engines.deployment import Deployment
from pinn.engines.encoder_ranks import encoder_ranks
from pinn.errors import PinnError
from pinn.specs.batch import parse_batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.request_media import request_media
from pinn.specs.serving import ServingSpec
from pinn.surrogate.encoder_time import EncoderTime, asked_encoder, encoder_time
from pinn.surrogate.step_features import STEP_FEATURES

VL = "Qwen/Qwen3-VL-8B-Instruct"
MODEL = load_model(VL)


def asked(count, size):
    return PredictionRequest(images_per_request=count, image_size=size)


def timed(size, tp=1, count=1, gpu="H100"):
    served = Deployment(MODEL, load_gpu(gpu), ServingSpec(tensor_parallel_size=tp))
    return asked_encoder(served, asked(count, size))


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
    with pytest.raises(PinnError, match=r"at most the 16 attention heads of the .*, got 32: use"):
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
    with pytest.raises(PinnError, match=r"tokens of images of Qwen/Qwen3-8B is unknown, .*: omit"):
        asked_encoder(served, asked(1, "64x64"))
    assert encoder_time(served, None) is None


def test_an_encoder_without_heads_cannot_be_timed():
    of = replace(MODEL.images, encoder=replace(MODEL.images.encoder, heads=0))
    served = Deployment(replace(MODEL, images=of), load_gpu("H100"), ServingSpec())
    with pytest.raises(PinnError, match=r"image encoder of .* is unknown"):
        encoder_time(served, request_media(of, None, VL, asked(1, "64x64")))


def test_windows_make_attention_cheaper():
    own = MODEL.images.encoder
    windowed = replace(own, full_layers=4, window_patches=64)
    model = replace(MODEL, images=replace(MODEL.images, encoder=windowed))
    served = Deployment(model, load_gpu("H100"), ServingSpec())
    found = asked_encoder(served, asked(1, "2048x2048"))
    assert isinstance(found, EncoderTime)
    assert found.first_s < 0.8 * timed("2048x2048").first_s


WHISPER = {"d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
           "encoder_layers": 32, "max_source_positions": 1500, "num_mel_bins": 128}  # fmt: skip
#: Sizes of the vision transformer ViT-L/14, without an image size.
VIT_L = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
         "num_hidden_layers": 24, "patch_size": 14}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 128256, "max_position_embeddings": 131072}  # fmt: skip


def heard(model_type, seconds, tp=1, count=1):
    config = {"model_type": model_type, "audio_config": WHISPER, "text_config": LLAMA,
              "stack_factor": 8, "hidden_size": 4096, "torch_dtype": "bfloat16"}  # fmt: skip
    serving = ServingSpec(tensor_parallel_size=tp)
    served = Deployment(load_model(config), load_gpu("H100"), serving)
    flags = PredictionRequest(audio_seconds=seconds, audios_per_request=count)
    return asked_encoder(served, flags)


def test_audio_takes_longer_than_its_arithmetic():
    found = heard("voxtral", 300.0)  # ten chunks of 1,500 positions
    own = 32 * (4 * 1280**2 + 2 * 1280 * 5120) * 15000 + 4 * 1280 * 32 * 15000 * 1500 / 2
    assert 2 * own / 989e12 < found.floor_s < found.first_s < 4 * found.floor_s
    assert found.to_json()["audios_per_request"] == 1
    assert found.to_json()["audio_seconds"] == 300
    assert found.to_json()["tokens_per_audio"] == 3750
    assert "1 audio clip of 300 s, 3,750 tokens each; the time of the audio enc" in found.sentence


def test_a_clip_is_encoded_in_the_step_of_its_first_token():
    found = heard("voxtral", 60.0, count=2)
    assert found.of_batch(parse_batch("1 prefill 1500 @ 0")) == found.seconds(2)
    chunks = [found.of_batch(parse_batch(f"1 prefill 750 @ {at}")) for at in (0, 750, 1500)]
    assert chunks == [found.first_s, found.first_s, 0]


def test_gpus_share_whispers_matrices_but_not_those_of_transformers_modules():
    whole, shared = heard("voxtral", 600.0), heard("voxtral", 600.0, tp=4)
    assert shared.first_s < whole.first_s
    assert shared.floor_s == whole.floor_s / 4
    alone = heard("qwen2_audio", 30.0)
    assert heard("qwen2_audio", 30.0, tp=4).first_s == alone.first_s


def spread(count, tp, model=MODEL, **more):
    serving = ServingSpec(tensor_parallel_size=tp, mm_encoder_tp_mode="data", **more)
    return asked_encoder(Deployment(model, load_gpu("H100"), serving), asked(count, "1024x1024"))


def test_images_spread_over_gpus_are_encoded_side_by_side():
    found, alone = spread(8, 4), timed("1024x1024")
    assert found.together == 4
    # Each GPU encodes an image as if it were alone; an all-gather of 4 x 1,024 tokens is added.
    assert alone.first_s < found.first_s < 1.2 * alone.first_s
    assert found.seconds(4) == found.first_s
    assert found.seconds(5) == found.seconds(8) == found.first_s + found.further_s
    assert spread(1, 1) == timed("1024x1024")


def test_many_images_take_less_time_spread_than_divided():
    divided = timed("1024x1024", 8, count=64)
    assert spread(64, 8).seconds(64) < divided.seconds(64)
    assert spread(1, 8).seconds(1) > divided.seconds(1)


def test_tiles_of_one_image_are_spread():
    vision = VIT_L | {"image_size": 448}
    config = {"model_type": "internvl_chat", "vision_config": vision, "llm_config": LLAMA,
              "downsample_ratio": 0.5, "torch_dtype": "bfloat16"}  # fmt: skip
    model = load_model(config)
    assert model.images.item(1024, 1024).patches == 10 * 32**2
    whole, shared = spread(1, 1, model), spread(1, 4, model)
    assert shared.together == 1
    assert 3 / 10 * whole.first_s < shared.first_s < whole.first_s  # 3 of 10 tiles


def test_models_without_data_parallel_encoders_divide_them():
    vision = VIT_L | {"image_size": 336}
    config = {"model_type": "llava", "vision_config": vision, "text_config": LLAMA,
              "image_seq_length": 576, "torch_dtype": "bfloat16"}  # fmt: skip
    model = load_model(config)
    with pytest.warns(UserWarning, match="vllm 0.33.0 does not support --mm-encoder-tp-mode data"):
        found = spread(1, 2, model)
    served = Deployment(model, load_gpu("H100"), ServingSpec(tensor_parallel_size=2))
    assert found == asked_encoder(served, asked(1, "1024x1024"))


@pytest.mark.parametrize(("version", "shared"), [("0.31.0", (1, 8)), ("0.22.1", (8, 1))])
def test_heads_that_gpus_do_not_divide_are_not_divided(version, shared):
    model = load_model("moonshotai/Kimi-K2.5")
    encoder = replace(model.images.encoder, heads=12)
    serving = ServingSpec(tensor_parallel_size=8, engine_version=version)
    assert encoder_ranks(Deployment(model, load_gpu("B200"), serving), encoder) == shared
