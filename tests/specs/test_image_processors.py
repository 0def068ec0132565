"""Tokens of images, against the counts of transformers' own processors."""

import importlib
import itertools
import sys
from collections import defaultdict
from types import ModuleType

import pytest

from pinn.specs.images import image_reader

pytest.importorskip("transformers", minversion="5.24")
SIZES = [*itertools.product((100, 336, 500, 1024, 1920, 4000), (50, 300, 384, 768, 3000))]


def module(name, file):
    return importlib.import_module(f"transformers.models.{name}.{file}")


def default_config(name, **parts):
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    return mapping[name](**parts).to_dict()


def counts(file, processor, image_processor, images=(), **attributes):
    """Return the counting function of a processor class, without a tokenizer."""
    made = object.__new__(getattr(module(file, f"processing_{file}"), processor))
    kwargs = defaultdict(dict, images_kwargs=dict(images))
    vars(made).update(attributes, image_processor=image_processor)
    vars(made)["_merge_kwargs"] = lambda **_: kwargs
    return lambda w, h: made._get_num_multimodal_tokens(image_sizes=[(h, w)]).num_image_tokens[0]


def made(file, name, **settings):
    """Return an image processor; transformers has variants that need no torchvision."""
    found = importlib.import_module(f"transformers.models.{file}.image_processing_pil_{file}")
    return getattr(found, f"{name}Pil")(**settings)


def internvl(model_type="internvl", processor="InternVLProcessor"):
    images = made("got_ocr2", "GotOcr2ImageProcessor", size={"height": 448, "width": 448})
    crops = {"crop_to_patches": True}
    return counts(model_type, processor, images, crops, image_seq_length=256)


def llava_next(model_type="llava_next", processor="LlavaNextProcessor"):
    images = made("llava_next", "LlavaNextImageProcessor", size={"shortest_edge": 336})
    images.image_grid_pinpoints = default_config(model_type)["image_grid_pinpoints"]
    class_token = {"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    return counts(model_type, processor, images, patch_size=14, **class_token)


def llava_onevision():
    images = made("llava_onevision", "LlavaOnevisionImageProcessor")
    images.image_grid_pinpoints = default_config("llava_onevision")["image_grid_pinpoints"]
    size = {"size": {"height": 384, "width": 384}}
    own = {"vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9"}
    name = "LlavaOnevisionProcessor"
    return counts("llava_onevision", name, images, size, num_image_tokens=729, **own)


def split(file, name, tile, tokens):
    edges = {"size": {"longest_edge": 4 * tile}, "max_image_size": {"longest_edge": tile}}
    # Most tokenizers have one token for two line breaks.
    one = {"tokenizer": lambda *_, **__: {"input_ids": [0]}, "image_seq_len": tokens}
    return counts("idefics3", "Idefics3Processor", made(file, name, **edges), edges, **one)


def gemma4():
    return counts("gemma4", "Gemma4Processor", made("gemma4", "Gemma4ImageProcessor"))


def qianfan():
    return internvl("qianfan_ocr", "QianfanOCRProcessor")


def llava_next_video():
    return llava_next("llava_next_video", "LlavaNextVideoProcessor")


SIGLIP = {"model_type": "siglip_vision_model", "image_size": 512, "patch_size": 16}
CASES = {
    "internvl": (internvl, {}),
    "qianfan_ocr": (qianfan, {}),
    "llava_next": (llava_next, {}),
    "llava_next_video": (llava_next_video, {}),
    "llava_onevision": (llava_onevision, {}),
    "idefics3": (lambda: split("idefics3", "Idefics3ImageProcessor", 364, 169),
                 {"vision_config": {"image_size": 364, "patch_size": 14}}),
    "smolvlm": (lambda: split("smolvlm", "SmolVLMImageProcessor", 512, 64),
                {"vision_config": {"image_size": 512, "patch_size": 16}, "scale_factor": 4}),
    "gemma4": (gemma4, {"vision_config": {"model_type": "gemma4_vision"}}),
}  # fmt: skip


@pytest.mark.parametrize("model_type", CASES)
def test_tokens_are_those_of_the_processor(model_type):
    count, parts = CASES[model_type]
    theirs, own = count(), image_reader(default_config(model_type, **parts))
    differ = {s: own.item(*s).tokens for s in SIZES if own.item(*s).tokens != theirs(*s)}
    assert not differ


@pytest.mark.parametrize("limits", [(56 * 56, 28 * 28 * 1280), (3136, 12845056)])
def test_limits_of_a_processor_file_scale_images(limits):
    least, most = limits
    images = made("qwen2_vl", "Qwen2VLImageProcessor", min_pixels=least, max_pixels=most)
    theirs = counts("qwen2_vl", "Qwen2VLProcessor", images, {"merge_size": 2})
    own = image_reader(default_config("qwen2_vl"), {"min_pixels": least, "max_pixels": most})
    assert all(own.item(*size).tokens == theirs(*size) for size in SIZES)
    assert own.item(4000, 3000).tokens <= most // 28**2


def by_patches(images):
    """Return the counting function of a processor whose tokens are merged patches."""
    return lambda w, h: images.get_number_of_image_patches(h, w, {}) // images.merge_size**2


@pytest.mark.parametrize(
    ("model_type", "file", "name"),
    [
        ("cosmos3_omni", "qwen2_vl", "Qwen2VL"),
        ("hyperclovax_vision_v2", "qwen2_vl", "Qwen2VL"),
        ("cohere_compass", "cohere_compass", "CohereCompass"),
        ("paddleocr_vl", "paddleocr_vl", "PaddleOCRVL"),
        ("glm4v", "glm4v", "Glm4v"),
        ("glm46v", "glm46v", "Glm46V"),
    ],
)
def test_an_image_has_as_many_tokens_as_merged_patches(model_type, file, name):
    size = {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 1280}
    own = image_reader(default_config(model_type), {"size": size})
    images = made(file, f"{name}ImageProcessor", size=size, patch_size=own.sizes.patch)
    theirs = by_patches(images)
    assert all(own.item(*each).tokens == theirs(*each) for each in SIZES)


@pytest.mark.parametrize(("model_type", "name"), [("glm4v", "Glm4v"), ("glm46v", "Glm46V")])
def test_limits_of_glm_are_of_two_frames(model_type, name):
    theirs = by_patches(made(model_type, f"{name}ImageProcessor"))
    own = image_reader(default_config(model_type))
    assert all(own.item(*each).tokens == theirs(*each) for each in SIZES)
    assert own.item(4000, 3000).tokens == 7500  # 11,760,000 / 2 pixels of 28 x 28


def test_paligemma_has_its_stated_tokens():
    own = image_reader(default_config("paligemma"))
    assert own.item(640, 480).tokens == own.item(3000, 100).tokens == 256


@pytest.fixture
def functions(monkeypatch):
    """Import functions of image processors that need torchvision for other things."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
            empty = ModuleType(name)
            empty.functional = ModuleType("functional")
            monkeypatch.setitem(sys.modules, name, empty)
    yield lambda name: module(name, f"image_processing_{name}")
    for name in ("kimi_k25", "llama4", "minimax_m3_vl"):
        sys.modules.pop(f"transformers.models.{name}.image_processing_{name}", None)


def test_images_of_kimi_are_padded(functions):
    resize = functions("kimi_k25").navit_resize
    own = image_reader(default_config("kimi_k25"))
    for width, height in [*SIZES, (8000, 4000), (7200, 20)]:
        _, padded = resize(height, width, 14, 2, 16384, 512)
        assert own.item(width, height).tokens == padded[0] * padded[1] // 28**2


def test_images_of_minimax_are_small(functions):
    resize, own = (
        functions("minimax_m3_vl").smart_resize,
        image_reader(default_config("minimax_m3_vl")),
    )
    for width, height in SIZES:
        rows, columns = resize(height, width, 28, 3136, 451584)
        assert own.item(width, height).tokens == rows * columns // 28**2


def test_tiles_of_llama_4_are_those_of_its_canvas(functions):
    torch, theirs = pytest.importorskip("torch"), functions("llama4")
    edge = importlib.import_module("transformers.image_utils").SizeDict(height=336, width=336)
    found = torch.tensor(theirs.find_supported_resolutions(max_num_chunks=16, patch_size=edge))
    prompt = object.__new__(module("llama4", "processing_llama4").Llama4Processor)
    vision = {"model_type": "llama4_vision_model", "image_size": 336}
    own = image_reader(default_config("llama4", vision_config=vision))
    for width, height in SIZES:
        rows, columns = (int(n) // 336 for n in theirs.get_best_fit((height, width), found))
        text = prompt._prompt_split_image((rows, columns), 144)
        assert own.item(width, height).tokens == text.count("<|")


def test_tiles_of_phi_4_by_hand():
    own = image_reader(default_config("phi4_multimodal"))
    # 2 x 1 tiles of 448: the image fills them, so that no patch is padding.
    assert own.item(896, 448).tokens == 256 + 16 + 1 + 16 * (32 + 1)
    # 1 x 1 tile, of which 600 / 448 scales the height to 224: half of its rows are padding.
    assert own.item(448, 224).tokens == 256 + 16 + 1 + 8 * (16 + 1)
    # More than 36 tiles: those of the closest aspect ratio.
    item = own.item(4480, 4480)
    assert item.patches == (36 + 1) * 32**2
    assert item.sequence == 32**2
