"""Sampling settings: where they come from, and which go before which."""

import json

import pytest

from pinn.common.documents import read_json
from pinn.common.files import data_folder
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.cost_facts import PENALIZED, TAKEN, sampler_kernels
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.model import GREEDY, Sampling, overridden, sampling_from_generation_config
from pinn.specs.model_names import aliases, find_in_catalog, published_generation
from pinn.specs.model_variants import find_variant
from pinn.specs.serving import ServingSpec

QWEN = Sampling(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05)


def test_a_generation_config_is_read_as_vllm_does():
    config = {
        "do_sample": False,  # vLLM does not look at it
        "eos_token_id": [1, 2],
        "top_p": 0.9,
        "top_k": 50,  # the value that stands for none
        "temperature": None,
    }
    assert sampling_from_generation_config(config, "g.json") == Sampling(top_p=0.9)
    assert sampling_from_generation_config({}, "g.json") == Sampling()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"top_p": "0.9"}, "g.json: top_p must be a number, got '0.9'"),
        ({"top_p": 0}, r"g.json: the sampling setting top_p must be in \(0, 1\], got 0"),
        ({"temperature": -1}, "temperature must be 0 or more"),
        ({"top_k": -2}, "top_k must be at least -1"),
        ({"min_p": 2}, "min_p must be in"),
        ({"repetition_penalty": 0}, "repetition_penalty must be positive"),
        ({"top_k": 20.5}, "top_k must be a whole number, got 20.5"),
        ({"temperature": float("inf")}, "temperature must be a number, got inf"),
    ],
)
def test_settings_that_cannot_be_used_are_named(config, message):
    with pytest.raises(PinnError, match=message):
        sampling_from_generation_config(config, "g.json")


def test_an_override_goes_before_what_it_names_alone():
    assert overridden(QWEN, '{"top_p": 0.5, "max_new_tokens": 9}') == Sampling(
        temperature=0.7, top_k=20, top_p=0.5, repetition_penalty=1.05
    )
    assert overridden(QWEN, "") == overridden(QWEN, "{}") == QWEN
    # Null is vLLM's own default, not the model's.
    assert overridden(QWEN, '{"top_p": null, "top_k": 40.0}') == Sampling(
        temperature=0.7, top_k=40, repetition_penalty=1.05
    )


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "null",
        " ",
        "{} x",
        '{"beams": 4}',
        '{"TOP_P": 0.9}',
        '{"top_p": true}',
        '{"top_p": 2}',
    ],
)
def test_an_override_that_cannot_be_read_is_refused(text):
    with pytest.raises(PinnError, match="--override-generation-config"):
        ServingSpec(override_generation_config=text)


def test_greedy_requests_leave_nothing_out_but_pay_for_penalties():
    greedy = overridden(QWEN, GREEDY)
    assert greedy.is_greedy
    assert sampler_kernels(greedy) == (TAKEN, PENALIZED)


def test_a_name_stands_for_the_published_settings():
    assert load_model("Qwen/Qwen2.5-7B-Instruct").sampling == QWEN
    assert load_model("qwen2.5-7b-instruct").sampling == QWEN
    # The base model's shapes are the chat model's; its settings are not.
    assert load_model("Qwen/Qwen2.5-7B").sampling == Sampling()


def test_a_folder_asks_for_what_lies_in_it(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    assert load_model(tmp_path).sampling == Sampling()
    assert load_model(tmp_path, published_as="Qwen/Qwen2.5-7B-Instruct").sampling == QWEN
    (tmp_path / "generation_config.json").write_text('{"top_k": 7}')
    own = Sampling(top_k=7)
    assert load_model(tmp_path).sampling == own
    assert load_model(tmp_path, published_as="Qwen/Qwen2.5-7B-Instruct").sampling == own


def test_without_that_file_the_config_itself_may_ask(parse):
    assert parse(top_p=0.9, temperature=1.0, top_k=50).sampling == Sampling(top_p=0.9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "must have a JSON object"),
        ("{", "malformed JSON"),
        ('{"top_p": 7}', "top_p must be in"),
    ],
)
def test_a_broken_file_is_named(tmp_path, config, content, message):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(PinnError, match=rf"generation_config\.json.*{message}"):
        load_model(tmp_path)


def test_a_model_of_the_hub_brings_its_own(tmp_path, monkeypatch, config):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    (tmp_path / "generation_config.json").write_text('{"min_p": 0.1}')

    def cached(_name, filename):
        path = tmp_path / filename
        return path if path.is_file() else None

    monkeypatch.setattr("pinn.specs.model_names.cached_file", cached)
    assert load_model("org/of-the-hub").sampling == Sampling(min_p=0.1)


def test_every_published_entry_is_usable_and_names_a_known_model():
    groups = read_json(data_folder("models") / "generation.json")["groups"]
    names = [name for group in groups for name in group["models"]]
    assert len(names) == len(set(names)) > 60
    assert [n for n in names if find_in_catalog(n) is None and find_variant(n) is None] == []
    for group in groups:
        sampling = sampling_from_generation_config(group["settings"], "generation.json")
        assert (sampling == Sampling()) == (not group["settings"])


def test_other_names_of_a_model_that_asks_for_something_are_listed_too():
    # Shapes of an alias are its target's, settings need not be: each has to say its own.
    silent = [
        name
        for name, target in aliases().items()
        if published_generation(target) and published_generation(name) is None
    ]
    assert silent == []


def test_flags_decide_between_the_model_and_vllm():
    def sampling(**flags):
        model, gpu = load_model("Qwen/Qwen2.5-7B-Instruct"), load_gpu("H100")
        return Deployment(model, gpu, ServingSpec(**flags)).sampling

    assert sampling() == QWEN
    assert sampling(generation_config="vllm") == Sampling()
    assert sampling(generation_config="vllm", override_generation_config=GREEDY) == Sampling(
        temperature=0
    )
    with pytest.raises(PinnError, match="--generation-config 'mine' is unknown"):
        sampling(generation_config="mine")
