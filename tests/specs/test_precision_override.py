from dataclasses import replace

import pytest

import pinn
from pinn.engines.configurations import make_deployment
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.model_names import find_in_catalog
from pinn.specs.model_variants import SCHEMES, check_format, with_precision
from pinn.specs.precision import precision
from pinn.specs.serving import ServingSpec

#: The checkpoint that a label on another one stands for.
RELEASES = [
    ("Qwen/Qwen3-235B-A22B", "nvfp4", "nvidia/Qwen3-235B-A22B-NVFP4"),
    ("Qwen/Qwen3-235B-A22B", "fp8_block", "Qwen/Qwen3-235B-A22B-FP8"),
    ("Qwen/Qwen3-32B", "fp8_block", "Qwen/Qwen3-32B-FP8"),
    ("MiniMaxAI/MiniMax-M2.5", "fp4", "nvidia/MiniMax-M2.5-NVFP4"),
    ("MiniMaxAI/MiniMax-M2.5", "fp8", "MiniMaxAI/MiniMax-M2.5"),
    ("moonshotai/Kimi-K2.5", "nvfp4", "nvidia/Kimi-K2.5-NVFP4"),
    ("moonshotai/Kimi-K2.5", "int4", "moonshotai/Kimi-K2.5"),
    ("deepseek-ai/DeepSeek-V3", "nvfp4", "nvidia/DeepSeek-V3.1-NVFP4"),
    ("deepseek-ai/DeepSeek-V3", "fp8", "deepseek-ai/DeepSeek-V3"),
    ("meta-llama/Llama-3.1-70B", "nvfp4", "nvidia/Llama-3.3-70B-Instruct-FP4"),
    (
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "fp8",
        "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
    ),
    ("openai/gpt-oss-120b", "fp4", "openai/gpt-oss-120b"),
]


@pytest.mark.parametrize(("base", "label", "release"), RELEASES)
def test_a_label_means_what_the_release_does(base, label, release):
    labelled, released = with_precision(load_model(base), label), load_model(release)
    assert labelled.precisions == released.precisions
    assert labelled.kv_cache_precision == released.kv_cache_precision
    assert labelled.moe == released.moe


def test_modelopt_fp8_also_asks_for_an_fp8_cache():
    labelled = with_precision(load_model("Llama-3.1-70B"), "fp8_static", kv_cache="fp8")
    released = load_model("nvidia/Llama-3.1-70B-Instruct-FP8")
    assert labelled.precisions == released.precisions
    assert labelled.kv_cache_precision == released.kv_cache_precision


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3", "Kimi-K2.5"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_shapes_and_the_output_head_never_change(name, scheme):
    model = load_model(name)
    labelled = with_precision(model, scheme)
    assert labelled.layer_groups == model.layer_groups
    assert labelled.precisions.lm_head.name in ("bf16", "fp16")
    assert with_precision(labelled, scheme) == labelled


@pytest.mark.parametrize("name", ["gpt-oss-20b", "DeepSeek-V3", "nvidia/Kimi-K2.5-NVFP4"])
def test_bf16_undoes_every_quantization(name):
    plain = with_precision(load_model(name), "bf16")
    p = plain.precisions
    kinds = (p.attention, p.dense_ffn, p.experts, p.shared_experts, plain.kv_cache_precision)
    assert {kind.name for kind in kinds} == {"bf16"}


def test_four_bit_weights_are_in_all_layers_but_of_kimi():
    everything = with_precision(load_model("Qwen3-30B-A3B"), "int4").precisions
    assert everything.attention.name == everything.experts.name == "int4_wo"
    kimi = with_precision(with_precision(load_model("Kimi-K2.5"), "bf16"), "int4").precisions
    assert (kimi.attention.name, kimi.experts.name) == ("bf16", "int4_wo")


def test_mxfp4_is_for_experts_where_there_are_any():
    assert with_precision(load_model("Qwen3-30B-A3B"), "mxfp4").precisions.attention.name == "bf16"
    assert with_precision(load_model("Llama-3.1-8B"), "mxfp4").precisions.dense_ffn.name == "mxfp4"


def test_eight_bit_activations_of_mxfp4_experts_are_asked_for_by_name():
    gpt_oss = load_model("openai/gpt-oss-120b")
    served = with_precision(gpt_oss, "mxfp4_mxfp8")
    assert served.precisions.experts.name == "mxfp4_mxfp8"
    assert replace(served.precisions, experts=gpt_oss.precisions.experts) == gpt_oss.precisions
    assert with_precision(gpt_oss, "mxfp4") == gpt_oss
    assert Deployment(served, load_gpu("B200"), ServingSpec()).model == served
    with pytest.raises(PinnError, match=r"capability 9\.0, but kernels for mxfp4_mxfp8 need 10\.x"):
        Deployment(served, load_gpu("H100"), ServingSpec())


def test_a_half_precision_model_keeps_its_own_format_elsewhere():
    model = with_precision(load_model("Llama-2-7b"), "fp8")
    assert (model.precisions.lm_head.name, model.kv_cache_precision.name) == ("fp16", "fp16")


def test_unknown_label():
    with pytest.raises(PinnError, match=r"the number format 'fp3' is unknown: use one of bf16"):
        with_precision(load_model("Llama-3.1-8B"), "fp3")


def test_static_scales_stay_under_the_label_fp8():
    released = load_model("nvidia/Llama-3.1-70B-Instruct-FP8")
    assert with_precision(released, "fp8") == with_precision(released, "fp8_static") == released
    assert with_precision(load_model("Llama-3.1-70B"), "fp8").precisions.dense_ffn.name == "fp8"


@pytest.mark.parametrize("word", ["compressed-tensors", "modelopt", "torchao", "quark"])
def test_a_method_without_a_quantized_checkpoint_is_an_error_with_a_remedy(word):
    with pytest.raises(
        PinnError,
        match=rf"--quantization {word}: .*16 bits: give a model with",
    ):
        with_precision(load_model("Qwen/Qwen3-8B"), word)


@pytest.mark.parametrize(
    ("name", "word", "own"),
    [
        ("openai/gpt-oss-120b", "fp8", "mxfp4"),
        ("openai/gpt-oss-120b", "awq", "mxfp4"),
        ("openai/gpt-oss-20b", "nvfp4", "mxfp4"),
        ("deepseek-ai/DeepSeek-V3", "awq", "fp8_block"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "gptq_marlin", "fp8_static"),
        ("moonshotai/Kimi-K2.5", "bitsandbytes", "int4_wo"),
    ],
)
def test_another_format_than_the_checkpoints_own_is_refused(name, word, own):
    for engine in ("vllm", "sglang"):
        with pytest.raises(
            PinnError, match=rf"quantized to {own}, .* {word} cannot change: omit quantization"
        ):
            pinn.predict(name, "B200", quantization=word, engine=engine, tensor_parallel_size=8)


@pytest.mark.parametrize(
    ("name", "word", "own"),
    [
        ("openai/gpt-oss-120b", "mxfp4", "mxfp4"),
        ("openai/gpt-oss-120b", "none", "mxfp4"),
        ("openai/gpt-oss-120b", "bf16", "bf16"),
        ("moonshotai/Kimi-K2.5", "awq", "int4_wo"),
        ("moonshotai/Kimi-K2.5", "nvfp4", "nvfp4"),  # NVIDIA's release
    ],
)
def test_the_checkpoints_own_format_and_other_releases_are_predicted(name, word, own):
    given = {"model": name, "gpu": "B200", "precision": word, "tensor_parallel_size": 8}
    assert make_deployment(given).model.precisions.experts.name == own


def test_a_gpt_oss_checkpoint_in_nvfp4_is_predicted_from_its_config():
    config = dict(find_in_catalog("openai/gpt-oss-120b").documents()[0])
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    model = load_model(config)
    check_format(model, "nvfp4")
    assert with_precision(model, "nvfp4").precisions.experts.name == "nvfp4"


@pytest.mark.parametrize("word", ["modelopt", "compressed-tensors", "none"])
def test_a_method_leaves_a_quantized_checkpoint_as_it_is(word):
    model = load_model("nvidia/Llama-3.1-8B-Instruct-FP8")
    assert with_precision(model, word) == model


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("awq", "int4_wo"), ("awq_marlin", "int4_wo"), ("gptq_marlin", "int4_wo"),
        ("bitsandbytes", "nf4"), ("modelopt_fp4", "nvfp4"), ("fp8_per_block", "fp8_block"),
        ("mxfp8", "mxfp8"), ("none", "bf16"), ("int8_per_channel_weight_only", "int8_wo"),
    ],
)  # fmt: skip
def test_words_of_engines_name_formats(word, expected):
    model = with_precision(load_model("Qwen/Qwen3-8B"), word)
    assert model.precisions.dense_ffn.name == expected


def test_an_8_bit_gptq_checkpoint_keeps_its_bits():
    config = dict(find_in_catalog("Qwen/Qwen3-4B").documents()[0])
    config["quantization_config"] = {"quant_method": "gptq", "bits": 8}
    model = load_model(config)
    check_format(model, "gptq_marlin")
    assert with_precision(model, "gptq_marlin").precisions.dense_ffn.name == "int8_wo"


@pytest.mark.parametrize("form", ["nf4", "nvfp4_wo", "mxfp8", "int4_fp8", "fp8_wo"])
@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"])
def test_formats_that_no_table_times_have_stand_ins_and_a_note(form, name):
    for _ in range(2):
        with pytest.warns(UserWarning, match=f"kernels for {form} were not measured"):
            found = pinn.predict(name, "H100", quantization=form)
    own = with_precision(load_model(name), form).precisions
    assert own.attention.bytes_per_weight == precision(form).bytes_per_weight
    assert found.to_json()["precisions"]["attention"] == own.attention.name
