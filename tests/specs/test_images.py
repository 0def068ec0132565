"""Images as tokens of the prompt."""

import pytest

from pinn.api.requests import PredictionRequest
from pinn.errors import PinnError
from pinn.simulator.workloads.load import asked_load
from pinn.specs.catalog import load_model
from pinn.specs.images import image_reader, parse_size
from pinn.specs.media import Unread
from pinn.specs.request_media import request_media

QWEN = {"depth": 32, "hidden_size": 1280, "patch_size": 14, "spatial_merge_size": 2}
PIXTRAL = {"model_type": "pixtral", "hidden_size": 1024, "num_hidden_layers": 24, "patch_size": 14}
SIGLIP = {"hidden_size": 1152, "num_hidden_layers": 27, "patch_size": 14, "image_size": 896}
LOAD = {"input_len": 100, "output_len": 10, "concurrency": 4, "num_prompts": 8}
VL = "Qwen/Qwen3-VL-8B-Instruct"


def reader(model_type, vision, **more):
    return image_reader({"model_type": model_type, "vision_config": vision, **more})


@pytest.mark.parametrize(
    ("model_type", "vision", "size", "tokens"),
    [
        ("qwen2_5_vl", QWEN, (1024, 768), 37 * 27),  # edges of 28 pixels: 36.6 and 27.4
        ("qwen3_vl", QWEN | {"patch_size": 16}, (1024, 1024), 32 * 32),
        ("qwen2_vl", QWEN, (10, 10), 1),
        ("mistral3", PIXTRAL | {"image_size": 1540}, (1540, 770), 28 * (55 + 1)),  # a break a row
        ("mistral3", PIXTRAL | {"image_size": 1540}, (3080, 1540), 28 * (55 + 1)),  # half as long
        ("pixtral", PIXTRAL, (1024, 28), 1 * (37 + 1)),
    ],
)
def test_tokens_of_an_image_by_hand(model_type, vision, size, tokens):
    assert reader(model_type, vision, spatial_merge_size=2).item(*size).tokens == tokens


def test_tokens_that_do_not_depend_on_the_size():
    text = {"hidden_size": 2560}
    own = reader("gemma3", SIGLIP, mm_tokens_per_image=256, text_config=text)
    assert own.item(100, 100).tokens == own.item(4000, 3000).tokens == 256
    # All 64 x 64 patches pass the embedding and 27 layers, and are pooled afterwards.
    weights = 27 * (4 * 1152**2 + 2 * 1152 * 4 * 1152) + 3 * 14**2 * 1152
    projector = 2 * 1152 * 2560 * 256
    flop = 2 * weights * 4096 + 4 * 27 * 1152 * 4096**2 + projector
    assert own.item(1, 1).flop(own.encoder) == flop


def test_what_is_not_known_is_none():
    assert reader("brand_new", QWEN) == Unread(
        "no rule is known for the tokens of model_type 'brand_new'"
    )
    assert image_reader({"model_type": "qwen3_vl"}) is None
    assert "lacks mm_tokens_per_image" in reader("gemma3", SIGLIP).reason
    assert "cross-attention" in reader("mllama", SIGLIP).reason


@pytest.mark.parametrize("size", ["", "1024", "0x5", "axb", "1x2x3", "9999999x1"])
def test_sizes_that_are_none(size):
    with pytest.raises(PinnError, match="--image-size must be width and height in pixels"):
        parse_size(size)


def test_images_lengthen_every_prompt():
    plain, _ = asked_load(None, LOAD, 0, model=VL)
    flags = LOAD | {"images_per_request": 3, "image_size": "640x480"}
    load, _ = asked_load(None, flags, 0, model=VL)
    own = load_model(VL).images.item(640, 480).tokens
    assert own == 20 * 15
    more = load.draw().prompt_tokens - plain.draw().prompt_tokens
    assert (more == 3 * own).all()
    assert load.title == "1000 tokens in, 10 out"


def test_images_need_a_model_that_is_known_to_read_them():
    flags = LOAD | {"images_per_request": 1}
    with pytest.raises(PinnError, match="without --model"):
        asked_load(None, flags, 0)
    with pytest.raises(
        PinnError,
        match=r"unknown, as .* no vision_config: omit .*count these tokens in --input-len",
    ):
        asked_load(None, flags, 0, model="Qwen/Qwen3-8B")


def test_a_chunk_encodes_the_images_that_begin_in_it():
    asked = PredictionRequest(images_per_request=3, image_size="640x480")
    images = request_media(load_model(VL).images, None, VL, asked, first_token=100)
    assert (images.tokens, images.prompt_tokens) == (300, 900)
    assert images.begun_in(0, 100) == 0
    assert images.begun_in(0, 101) == 1
    assert images.begun_in(101, 299) == 0
    assert images.begun_in(400, 1) == 1
    # However a prompt is cut, each image is encoded once.
    for cut in (1, 99, 100, 101, 400, 401, 999, 1000, 1200):
        assert images.begun_in(0, cut) + images.begun_in(cut, 1500 - cut) == 3
