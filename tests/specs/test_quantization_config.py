import json
import os
import warnings
from pathlib import Path

import pytest

from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.module_patterns import Matrix, ModulePatterns
from pinn.specs.precision import precision
from pinn.specs.quantization import read_quantization

FP8_INPUTS = {"num_bits": 8, "type": "float", "dynamic": True}
STATIC_INPUTS = FP8_INPUTS | {"dynamic": False}
#: compressed-tensors' QuantizationArgs are static by default.
UNSAID_INPUTS = {"num_bits": 8, "type": "float"}


def compressed(weights, inputs=None, targets=("Linear",), **more):
    group = {"targets": list(targets), "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


INT8_INPUTS = {"num_bits": 8, "type": "int", "dynamic": True}
INT8_DTYPE = {"_type": "torch.dtype", "_data": "int8"}
MXFP4 = {"dtype": "fp4", "group_size": 32, "qscheme": "per_group"}


def torchao(kind, **data):
    config = {"_type": kind, "_version": 1, "_data": data}
    return {"quant_method": "torchao", "quant_type": {"default": config}}


def quark(weight, inputs=None, **more):
    whole = {"weight": weight, "input_tensors": inputs}
    return {"quant_method": "quark", "global_quant_config": whole, **more}


def names(model):
    p = model.precisions
    return {
        "attention": p.attention.name,
        "dense_ffn": p.dense_ffn.name,
        "experts": p.experts.name,
        "shared_experts": p.shared_experts.name,
        "lm_head": p.lm_head.name,
    }


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8_static"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "gptq", "bits": 4}, "int4_wo"),
        ({"quant_method": "gptq", "bits": "8"}, "int8_wo"),
        ({"quant_method": "awq", "w_bit": 4}, "int4_wo"),
        ({"quant_method": "awq", "bits": "4"}, "int4_wo"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8_static"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "fp8_block"),
        ({"producer": {"name": "modelopt"}, "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}, "nvfp4"),
        (compressed({"num_bits": 8, "type": "float"}, FP8_INPUTS), "fp8"),
        (compressed({"num_bits": 8, "type": "float"}, STATIC_INPUTS), "fp8_static"),
        (compressed({"num_bits": 8, "type": "float"}, UNSAID_INPUTS), "fp8_static"),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "block"}, FP8_INPUTS),
            "fp8_block",
        ),
        (compressed({"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "int"}), "int8"),
        (compressed({"num_bits": 8, "type": "int"}), "int8_wo"),
        (compressed({"num_bits": 4, "type": "int", "group_size": 128}), "int4_wo"),
        (compressed({"num_bits": 4, "type": "float", "group_size": 32}), "mxfp4"),
        (
            compressed(
                {"num_bits": 4, "type": "float", "group_size": 16},
                {"num_bits": 4, "type": "float", "group_size": 16},
            ),
            "nvfp4",
        ),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}), "nvfp4_wo"),
        (compressed({"num_bits": 8, "type": "float"}), "fp8_wo"),
        (compressed({"num_bits": 8, "type": "float", "group_size": 32}, FP8_INPUTS), "mxfp8"),
        (compressed({"num_bits": 4, "type": "int"}, FP8_INPUTS), "int4_fp8"),
        (compressed({"num_bits": 4, "type": "int"}, INT8_INPUTS), "int4_int8"),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "mxfp8"),
        ({"quant_method": "modelopt", "quant_algo": "w4a8_awq"}, "int4_fp8"),
        ({"quant_method": "modelopt_fp4", "quant_algo": "W4A16_NVFP4"}, "nvfp4_wo"),
        ({"quant_method": "mxfp8"}, "mxfp8"),
        ({"quant_method": "fp8", "weight_block_size": [1, 32]}, "mxfp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}, "int4_wo"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "int"}, "int4_wo"),
        ({"quant_method": "inc", "bits": 8, "data_type": "mx_fp"}, "mxfp8"),
        (torchao("Int4WeightOnlyConfig"), "int4_wo"),
        (torchao("Float8DynamicActivationFloat8WeightConfig"), "fp8"),
        (torchao("IntxWeightOnlyConfig", weight_dtype=INT8_DTYPE), "int8_wo"),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "int8_wo"),
        (quark({"dtype": "fp8_e4m3"}, {"dtype": "fp8_e4m3"}), "fp8_static"),
        (quark({"dtype": "fp8_e4m3"}, {"dtype": "fp8_e4m3", "is_dynamic": True}), "fp8"),
        (quark({"dtype": "int8"}, {"dtype": "int8"}), "int8"),
        (quark({"dtype": "uint4", "group_size": 128}), "int4_wo"),
        (quark(MXFP4, MXFP4), "mxfp4"),
        (quark([{"dtype": "fp4", "group_size": 16}, {"dtype": "fp8_e4m3"}]), "nvfp4_wo"),
    ],
)
def test_formats_of_linear_layers(parse, quantization, expected):
    formats = names(parse(quantization_config=quantization))
    assert formats["attention"] == formats["dense_ffn"] == expected
    assert formats["lm_head"] == "bf16"


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "magic"},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        compressed({"num_bits": 2, "type": "int"}),
        {"quant_method": "compressed-tensors", "config_groups": {}},
        {"bits": 4},
    ],
)
def test_unknown_schemes_raise_or_fall_back_with_a_warning(config, parse, quantization):
    with pytest.raises(
        PinnError, match=r"config.json: the quantization is unknown .*expected .*fp8"
    ):
        parse(quantization_config=quantization)
    with pytest.warns(UserWarning, match="int4_wo is assumed for all linear layers"):
        model = load_model(config(quantization_config=quantization), fallback_precision="int4_wo")
    assert names(model)["attention"] == "int4_wo"


@pytest.mark.parametrize("nested", [False, True])
def test_quantization_at_the_root_or_in_the_text_config(config, nested):
    quantization = {"quantization_config": {"quant_method": "fp8"}}
    text = config(**quantization if nested else {})
    outer = {"model_type": "llama4", "text_config": text, **({} if nested else quantization)}
    assert names(load_model(outer))["attention"] == "fp8"


@pytest.mark.parametrize(
    "ignore",
    [
        {"ignore": ["re:.*self_attn.*"]},
        {"ignore": [f"language_model.model.layers.{i}.self_attn.q_proj" for i in range(8)]
         + [f"model.layers.{i}.self_attn.{p}_proj" for i in range(8) for p in "kvo"]},
        {"ignore": ["self_attn"]},
    ],
)  # fmt: skip
def test_ignore_lists(parse, ignore):
    weights = {"num_bits": 8, "type": "float"}
    formats = names(parse(quantization_config=compressed(weights, FP8_INPUTS, **ignore)))
    assert (formats["attention"], formats["dense_ffn"]) == ("bf16", "fp8")


def test_targets_choose_layers_and_names_go_before_linear(parse):
    quantization = compressed({"num_bits": 8, "type": "float"}, FP8_INPUTS)
    mlp = {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "int"}}
    quantization["config_groups"]["group_1"] = mlp
    formats = names(parse(quantization_config=quantization))
    assert (formats["attention"], formats["dense_ffn"]) == ("fp8", "int4_wo")
    del quantization["config_groups"]["group_0"]
    assert names(parse(quantization_config=quantization))["attention"] == "bf16"


def test_single_layers_left_out_do_not_decide_for_their_kind(parse):
    ignored = {"ignored_layers": ["model.layers.0.mlp", "model.layers.7.self_attn"]}
    formats = names(parse(quantization_config={"quant_method": "fp8", **ignored}))
    assert (formats["attention"], formats["dense_ffn"]) == ("fp8", "fp8")


def test_gptq_rules_that_leave_modules_out(parse):
    rules = {"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*attn.*": {}}}
    formats = names(parse(quantization_config=rules))
    assert (formats["attention"], formats["dense_ffn"]) == ("bf16", "int4_wo")


def test_the_router_name_does_not_match_gate_projections():
    patterns = ModulePatterns(["gate", "lm_head"], "test")
    assert not patterns.match(("model.layers.0.mlp.gate_proj",))
    assert patterns.match(("model.layers.0.mlp.gate",))


def test_a_broken_pattern_names_the_file(parse):
    quantization = {"quant_method": "fp8", "ignored_layers": ["re:(*"]}
    with pytest.raises(
        PinnError, match=r"config.json: the pattern 're:\(\*' is no regular expression"
    ):
        parse(quantization_config=quantization)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8"),
        ({"kv_cache_scheme": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_scheme": None}, "bf16"),
        ({}, "bf16"),
    ],
)
def test_kv_cache_format_is_separate(parse, scheme, expected):
    quantization = {"quant_method": "modelopt", "quant_algo": "FP8", **scheme}
    assert parse(quantization_config=quantization).kv_cache_precision.name == expected


def test_unknown_kv_cache_format_warns(parse):
    quantization = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "INT2"}
    with pytest.warns(UserWarning, match="the KV cache format 'INT2' is unknown"):
        assert parse(quantization_config=quantization).kv_cache_precision.name == "bf16"


def test_separate_quantization_file_counts_where_the_config_has_none(tmp_path, config):
    quant = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quant))
    (tmp_path / "config.json").write_text(json.dumps(config()))
    assert names(load_model(tmp_path))["attention"] == "fp8_static"
    own = config(quantization_config={"quant_method": "awq", "bits": 4})
    (tmp_path / "config.json").write_text(json.dumps(own))
    assert names(load_model(tmp_path))["attention"] == "int4_wo"


def mixed(layers, projections):
    """ModelOpt's MIXED_PRECISION block with a format by matrix."""
    listed = {
        f"model.layers.{layer}.{name}": {"quant_algo": algorithm}
        for layer in layers
        for name, algorithm in projections.items()
    }
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}


FP8_ATTENTION = {f"self_attn.{p}_proj": "FP8" for p in "qkvo"}
NVFP4_MLP = {f"mlp.{p}_proj": "NVFP4" for p in ("gate", "up", "down")}


def test_formats_by_matrix(parse):
    block = mixed(range(8), FP8_ATTENTION | NVFP4_MLP)
    block["quantized_layers"]["lm_head"] = {"quant_algo": "W4A16_NVFP4"}
    formats = names(parse(quantization_config=block))
    assert (formats["attention"], formats["dense_ffn"]) == ("fp8_static", "nvfp4")
    assert formats["lm_head"] == "nvfp4_wo"


def test_matrices_that_are_not_named_keep_the_models_format(parse):
    formats = names(parse(quantization_config=mixed(range(8), NVFP4_MLP)))
    assert (formats["attention"], formats["dense_ffn"]) == ("bf16", "nvfp4")


def test_a_list_of_one_layer_is_an_excerpt(parse):
    with pytest.warns(UserWarning, match="has only layer 0"):
        model = parse(quantization_config=mixed([0], FP8_ATTENTION | NVFP4_MLP))
    assert (names(model)["attention"], names(model)["dense_ffn"]) == ("fp8_static", "nvfp4")


@pytest.mark.parametrize(("layers", "expected"), [(range(3), "bf16"), (range(7), "fp8_static")])
def test_most_bytes_decide_for_a_kind_and_the_split_is_told(parse, layers, expected):
    with pytest.warns(
        UserWarning, match=r"config.json: the attention weights have several formats \(\d+% "
    ):
        model = parse(quantization_config=mixed(layers, FP8_ATTENTION))
    assert names(model)["attention"] == expected


@pytest.mark.parametrize(
    "block",
    [
        {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*attn.*": {"bits": 8}}},
        {"quant_method": "inc", "bits": 4, "extra_config": {".*attn.*": {"bits": 8}}},
    ],
)
def test_rules_that_give_matrices_other_bits(parse, block):
    formats = names(parse(quantization_config=block))
    assert (formats["attention"], formats["dense_ffn"]) == ("int8_wo", "int4_wo")


@pytest.mark.parametrize(
    "block",
    [
        {"quant_method": "bitsandbytes", "llm_int8_skip_modules": ["self_attn"]},
        {"quant_method": "hqq", "skip_modules": ["self_attn"],
         "quant_config": {"weight_quant_params": {"nbits": 4}}},
        quark({"dtype": "int4"}, exclude=["*self_attn*"]),
        {"quant_method": "auto-round", "bits": 4, "extra_config": {".*attn.*": {"bits": 16}}},
        {"quant_method": "gptq", "bits": 4,
         "modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]},
        torchao("ModuleFqnToConfig", module_fqn_to_config={
            "_default": {"_type": "Int4WeightOnlyConfig"}, "re:.*self_attn.*": None}),
    ],
)  # fmt: skip
def test_matrices_left_out_by_each_method(parse, block):
    formats = names(parse(quantization_config=block))
    assert formats["attention"] == "bf16" != formats["dense_ffn"]


def test_experts_in_four_bits_beside_layers_in_blocks():
    patterns = read_quantization({"quant_method": "w4afp8"}, "test")
    found = [
        patterns.of_kind("", [Matrix((f"model.layers.0.{name}",), 1.0)], precision("bf16")).name
        for name in ("mlp.experts.0.up_proj", "mlp.shared_experts.up_proj", "self_attn.q_proj")
    ]
    assert found == ["int4_fp8", "fp8_block", "fp8_block"]


def test_quark_has_the_formats_of_layers_and_of_the_cache_in_one_place(parse):
    cache = {"dtype": "fp8_e4m3", "is_dynamic": False}
    layers = {
        "*k_proj": {"weight": {"dtype": "int4"}, "output_tensors": cache},
        "*mlp*": {"weight": {"dtype": "int8"}},
    }
    model = parse(quantization_config=quark({"dtype": "int4"}, layer_quant_config=layers))
    assert (names(model)["attention"], names(model)["dense_ffn"]) == ("int4_wo", "int8_wo")
    assert model.kv_cache_precision.name == "fp8"


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, "quant_algo of modelopt is 'FP3'"),
        (mixed([0, 1], {"mlp.up_proj": "FP3"}), "quant_algo in quantized_layers of modelopt"),
        ({"quant_method": "gptq", "bits": 3}, "bits of gptq is 3"),
        ({"quant_method": "magic"}, "quant_method is 'magic'"),
        (torchao("Fpx"), "quant_type of torchao is 'Fpx'"),
        (quark({"dtype": "fp6_e2m3"}), "weight of global_quant_config of quark is 'fp6_e2m3"),
        (compressed({"num_bits": 2, "type": "int"}), "weights of group_0 of compressed-tensors"),
    ],
)
def test_errors_name_the_key(parse, block, named):
    with pytest.raises(PinnError, match=rf"the quantization is unknown \({named}.*--quantization"):
        parse(quantization_config=block)


CASES = os.environ.get("PINN_PUBLIC_CASES")


@pytest.mark.skipif(CASES is None, reason="PINN_PUBLIC_CASES names no folder of public configs")
def test_public_blocks_are_read():
    files = sorted(Path(CASES).glob("quant_*.json"))
    assert len(files) >= 11
    for file in files:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert load_model(file).precisions.dense_ffn.name != "bf16"


PUBLISHED = {  # attention, dense layers, experts, shared experts, KV cache
    "MiniMaxAI/MiniMax-M2.5": ("fp8_block", None, "fp8_block", None, "bf16"),
    "deepseek-ai/DeepSeek-V3": ("fp8_block", "fp8_block", "fp8_block", "fp8_block", "bf16"),
    "Qwen/Qwen3-30B-A3B-FP8": ("fp8_block", None, "fp8_block", None, "bf16"),
    "nvidia/Llama-3.1-70B-Instruct-FP8": ("fp8_static", "fp8_static", None, None, "fp8"),
    "nvidia/Qwen3-235B-A22B-NVFP4": ("nvfp4", None, "nvfp4", None, "fp8"),
    "nvidia/MiniMax-M2.5-NVFP4": ("bf16", None, "nvfp4", None, "fp8"),
    "nvidia/Kimi-K2.5-NVFP4": ("bf16", "nvfp4", "nvfp4", "nvfp4", "fp8"),
    "nvidia/Kimi-K2.6-NVFP4": ("bf16", "bf16", "nvfp4", "bf16", "fp8"),
    "nvidia/DeepSeek-V3.1-NVFP4": ("bf16", "nvfp4", "nvfp4", "nvfp4", "fp8"),
    "moonshotai/Kimi-K2.5": ("bf16", "bf16", "int4_wo", "bf16", "bf16"),
    "openai/gpt-oss-120b": ("bf16", None, "mxfp4", None, "bf16"),
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": ("bf16", None, "fp8", "fp8", "bf16"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints(name):
    model = load_model(name)
    p = model.precisions
    found = (p.attention, p.dense_ffn, p.experts, p.shared_experts, model.kv_cache_precision)
    for form, expected in zip(found, PUBLISHED[name], strict=True):
        assert expected is None or form.name == expected
    assert p.lm_head.name == "bf16"
