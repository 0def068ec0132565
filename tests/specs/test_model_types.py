import pytest

from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.huggingface import model_from_config


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MiniMaxAI/MiniMax-M3", "block-sparse attention"),
        ("moonshotai/Kimi-K3", "outputs of earlier layers"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "block_configs"),
        ("google/gemma-4-26B-A4B", "different head widths"),
    ],
)
def test_unsupported_layer_kinds_are_named(name, kind):
    with pytest.raises(PinnError, match=kind) as error:
        load_model(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("marker", "kind"),
    [
        ({"layer_types": ["linear_attention"] * 8}, "linear_attention"),
        ({"index_topk": 2048}, "DSA"),
        ({"attn_type_list": [0, 1] * 4}, "linear attention"),
        ({"hybrid_override_pattern": "M*M*"}, "mamba"),
    ],
)
def test_markers_count_under_any_type(parse, marker, kind):
    with pytest.raises(PinnError, match=kind):
        parse(**marker)


def test_softmax_only_attention_list_is_no_marker(parse):
    assert parse(attn_type_list=[1] * 8).layers == 8


def test_an_unknown_type_is_refused(config):
    values = config(model_type="brand_new")
    with pytest.raises(PinnError, match=r"'brand_new' is unknown: known ones are .*llama.*"):
        load_model(values)


def test_nested_text_config(config):
    text = config(torch_dtype=..., dtype="float16")
    outer = {"model_type": "mistral3", "text_config": text, "vision_config": {"hidden_size": 9}}
    model = model_from_config(outer, "test")
    assert (model.hidden_size, model.model_type) == (1024, "mistral3")
    assert model.precisions.attention.name == "fp16"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"torch_dtype": "float16"}, "fp16"),
        ({"torch_dtype": ..., "dtype": "bfloat16"}, "bf16"),
        ({"torch_dtype": ...}, "bf16"),  # absent means fp32, which vLLM serves in bf16
        ({"torch_dtype": "float32"}, "bf16"),
    ],
)
def test_dtype(parse, changes, expected):
    model = parse(**changes)
    assert model.precisions.lm_head.name == model.kv_cache_precision.name == expected


@pytest.mark.parametrize(
    ("changes", "tied"),
    [({}, False), ({"tie_word_embeddings": True}, True), ({"model_type": "gemma2"}, True)],
)
def test_tied_embeddings(parse, changes, tied):
    assert parse(**changes).tied_embeddings is tied


@pytest.mark.parametrize("value", [[], "text"])
def test_a_config_that_is_no_object_is_refused(value):
    with pytest.raises(PinnError, match="must hold a JSON object"):
        model_from_config(value, "test")
