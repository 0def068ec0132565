"""Names that the catalogue lacks are read by their words, and say how they were read."""

import json

import pytest

from pinn.engines.configurations import canonical, make_deployment
from pinn.errors import PinnError
from pinn.specs import catalog
from pinn.specs import model_names as hub
from pinn.specs.catalog import load_model


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr(hub, "hub_is_reachable", lambda: False)
    catalog._load_name.cache_clear()


def read(name):
    with pytest.warns(UserWarning, match="not in 'pinn models', so it is derived from its name"):
        return load_model(name)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B"),
        ("Qwen3-235B-A22B-Thinking-2507-FP8", "Qwen/Qwen3-235B-A22B"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "meta-llama/Meta-Llama-3.1-70B"),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4", "meta-llama/Meta-Llama-3.1-8B"),
        ("TheBloke/Llama-2-7B-Chat-AWQ", "meta-llama/Llama-2-7b-hf"),
        ("Qwen/Qwen2.5-Coder-14B-Instruct", "Qwen/Qwen2.5-14B-Instruct"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistralai/Mistral-Small-24B-Base-2501"),
        ("somebody/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
    ],
)
def test_releases_have_the_layers_of_their_base(name, base):
    found, known = read(name), load_model(base)
    assert found.layer_groups == known.layer_groups
    assert (found.hidden_size, found.vocab_size) == (known.hidden_size, known.vocab_size)
    assert found.title == name


@pytest.mark.parametrize(
    ("name", "attention", "experts_or_dense", "cache"),
    [
        ("Qwen/Qwen3-8B-FP8", "fp8_block", "fp8_block", "bf16"),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "fp8", "fp8", "bf16"),
        ("Llama-3.1-405B-Instruct-FP8", "bf16", "fp8", "bf16"),
        ("nvidia/Llama-3.1-405B-Instruct-FP8", "fp8_static", "fp8_static", "fp8"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "bf16", "fp8", "bf16"),
        ("nvidia/DeepSeek-R1-0528-NVFP4", "bf16", "nvfp4", "fp8"),
        ("RedHatAI/Qwen3-32B-NVFP4", "nvfp4", "nvfp4", "bf16"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "int8_wo", "int8_wo", "bf16"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "int8", "int8", "bf16"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "int4_wo", "int4_wo", "bf16"),
    ],
)
def test_a_format_in_a_name(name, attention, experts_or_dense, cache):
    model = read(name)
    part = model.precisions.experts if model.moe else model.precisions.dense_ffn
    assert model.name == name
    formats = (model.precisions.attention, part, model.kv_cache_precision)
    assert tuple(p.name for p in formats) == (attention, experts_or_dense, cache)


def test_a_rule_says_what_the_catalogue_knows_of_the_same_release():
    """Formats by name, against published quantization configs under a name that has none."""
    for published in ("Qwen/Qwen3-30B-A3B-FP8", "Qwen/Qwen3-32B-FP8"):
        by_rule = read(published.replace("-FP8", "-Instruct-FP8"))
        assert by_rule.precisions == load_model(published).precisions


def test_a_longer_context_and_sampling_of_its_own():
    model = read("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8")
    assert model.max_position == 262_144
    assert (model.sampling.temperature, model.sampling.top_k) == (0.7, 20)
    assert load_model("Qwen/Qwen3-30B-A3B").sampling.temperature == 0.6


def test_a_release_that_differs_in_nothing_keeps_the_known_name():
    model = read("Qwen/Qwen3-8B-Base")
    assert model == load_model("Qwen/Qwen3-8B")
    assert (model.name, model.title) == ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base")


def test_an_alias_is_headed_as_it_was_asked_for():
    model = load_model("Llama-3.3-70B-Instruct")
    assert (model.name, model.title) == ("meta-llama/Meta-Llama-3.1-70B", "Llama-3.3-70B-Instruct")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-33B-FP8", "Instruct", "FP8", "Llama-3.1-9B-Instruct"])
def test_no_rule_makes_a_model_of_an_unknown_size(name):
    with pytest.raises(PinnError, match=r"the model .* is unknown"):
        load_model(name)


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("TheBloke/Llama-2-7B-Chat-GGUF", r"llama\.cpp"),
        ("mlx-community/Qwen3-8B-mlx-4bit", "MLX"),
        ("unsloth/Llama-3.2-3B-Instruct-bnb-4bit", "bitsandbytes"),
    ],
)
def test_releases_for_other_engines_are_refused_by_name(name, engine):
    with pytest.raises(
        PinnError, match=f"in a format of .*{engine}.*give the model from which it was"
    ):
        load_model(name)


def test_folders_of_gguf_files_and_adapters_are_refused(tmp_path):
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model-Q4_K_M.gguf").touch()
    for path in (tmp_path / "gguf", tmp_path / "gguf" / "model-Q4_K_M.gguf"):
        with pytest.raises(PinnError, match=r"llama\.cpp's format GGUF.*give the config\.json"):
            load_model(path)
    adapter = tmp_path / "adapter_config.json"
    adapter.write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-8B"}))
    for path in (tmp_path, adapter):
        with pytest.raises(
            PinnError, match=r"a LoRA adapter, .*give the base model .*Qwen/Qwen3-8B"
        ):
            load_model(path)


def test_a_multimodal_model_says_what_is_left_out():
    with pytest.warns(
        UserWarning, match="times cover only the text model, without its vision encoder"
    ):
        make_deployment(canonical({"model": "Qwen/Qwen3-VL-4B-Instruct", "gpu": "H100"}))
    with pytest.warns(UserWarning, match="times cover only the text model, without its encoders"):
        make_deployment(canonical({"model": "Llama-3.2-11B-Vision-Instruct", "gpu": "H100"}))
    assert load_model("Qwen/Qwen3-4B").left_out == ""
