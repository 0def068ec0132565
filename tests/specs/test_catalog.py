import json
import shutil
import time

import pytest
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from pinn.errors import PinnError
from pinn.specs import catalog, model_names
from pinn.specs import model_names as hub
from pinn.specs.catalog import list_models, load_model
from pinn.specs.model_names import aliases


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr(hub, "hub_is_reachable", lambda: False)
    catalog._load_name.cache_clear()


@pytest.mark.parametrize("name", list_models())
def test_every_listed_model_loads(name):
    model = load_model(name)
    assert model.name == name
    assert model.layers > 0


@pytest.mark.parametrize("alias", aliases())
def test_every_alias_leads_to_a_catalog_model(alias):
    assert load_model(alias).name in list_models()


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("qwen/QWEN3-32b", "Qwen/Qwen3-32B"),
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
        ("Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistralai/Mistral-Nemo-Base-2407"),
    ],
)
def test_names_in_any_case_full_bare_or_alias(name, full):
    assert load_model(name).name == full


def test_the_row_of_a_model_goes_before_its_family():
    usual, own = (
        model_names.find_in_catalog(f"google/gemma-2-{size}").documents()[0]
        for size in ("9b", "27b")
    )
    assert (usual["head_dim"], own["head_dim"]) == (256, 128)
    assert (own["model_type"], own["hidden_size"], own["vocab_size"]) == ("gemma2", 4608, 256_000)


def test_paths_of_a_file_and_of_its_folder(tmp_path, config):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config()))
    for source in (folder, str(folder), folder / "config.json", str(folder / "config.json")):
        assert load_model(source).name == "my-model"
    renamed = shutil.copy(folder / "config.json", tmp_path / "org--other.json")
    assert load_model(renamed).name == "org/other"


def test_a_dictionary(config):
    assert load_model(config(_name_or_path="org/name")).name == "org/name"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1,\n "b" 2}', r"config.json, line 2: malformed JSON"),
        ("[1, 2]", r"config.json: the config.json must be a JSON object, got \[1, 2\]"),
        ('{"model_type": "llama"}', r"config.json: num_hidden_layers or .* is missing"),
        ("{}", r"config.json: the key model_type is missing: give"),
    ],
)
def test_malformed_files_are_named_in_one_line(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(PinnError, match=message) as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_missing_files_and_folders_without_config(tmp_path):
    with pytest.raises(PinnError, match=r"nowhere.json does not exist: give a config.json"):
        load_model(tmp_path / "nowhere.json")
    with pytest.raises(PinnError, match=r"does not exist"):
        load_model("./nowhere")
    with pytest.raises(PinnError, match=r"the folder .* has no config.json"):
        load_model(tmp_path)


def test_unknown_names_suggest_close_ones():
    with pytest.raises(PinnError, match=r"'Qwen/Qwen3-33B' is unknown.*Qwen/Qwen3-32B") as error:
        load_model("Qwen/Qwen3-33B")
    assert "\n" not in str(error.value)


def test_ambiguous_bare_names_list_their_owners(monkeypatch):
    monkeypatch.setattr(
        model_names, "full_names", lambda: {"x": ["qwen/qwen3-32b", "qwen/qwen3-8b"]}
    )
    with pytest.raises(PinnError, match="several models: use one of Qwen/Qwen3-32B, Qwen/Qwen3-8B"):
        load_model("x")


def test_the_local_cache_goes_before_the_hub(tmp_path, monkeypatch, config):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    monkeypatch.setattr(
        model_names,
        "cached_file",
        lambda _, filename: tmp_path / filename if filename == "config.json" else None,
    )
    assert load_model("org/cached").name == "org/cached"


def test_a_hub_out_of_reach_fails_soon(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.get_session", lambda: _SlowSession())
    monkeypatch.setattr(hub, "PROBE_TIMEOUT_S", 0.2)
    start = time.monotonic()
    with pytest.raises(PinnError, match="cannot be reached"):
        hub.download_config("org/name")
    assert time.monotonic() - start < 2


def test_a_download_brings_what_lies_beside_the_config(monkeypatch, tmp_path):
    asked = []

    def download(_repo, filename, **_kwargs):
        asked.append(filename)
        if filename == "hf_quant_config.json":
            raise EntryNotFoundError("no such entry")
        return str(tmp_path / filename)

    monkeypatch.setattr(hub, "hub_is_reachable", lambda: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert hub.download_config("org/name") == tmp_path / "config.json"
    beside = ["hf_quant_config.json", "generation_config.json", "preprocessor_config.json"]
    assert asked == ["config.json", *beside]


@pytest.mark.parametrize("error", [OSError("reset"), LocalEntryNotFoundError("connection lost")])
def test_a_file_that_could_not_be_asked_for_is_not_taken_for_missing(monkeypatch, tmp_path, error):
    def download(_repo, filename, **_kwargs):
        if filename == "generation_config.json":
            raise error
        return str(tmp_path / filename)

    monkeypatch.setattr(hub, "hub_is_reachable", lambda: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(PinnError, match="did not answer"):
        hub.download_config("org/name")


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (ValueError("bad id"), "has no such model"),
        (OSError("reset"), r"did not answer \(OSError\)"),
    ],
)
def test_refusals_of_the_hub_are_explained(monkeypatch, raised, message):
    def refuse(*_args, **_kwargs):
        raise raised

    monkeypatch.setattr(hub, "hub_is_reachable", lambda: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    with pytest.raises(PinnError, match=rf"the model 'org/name' is unknown.*{message}"):
        load_model("org/name")


class _SlowSession:
    def head(self, *_args, **_kwargs):
        time.sleep(5)
