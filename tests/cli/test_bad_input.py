"""Whatever is wrong, one line says what, where and how to mend it, and nothing is half-written."""

import json

import pytest

LLAMA = ("--model", "Llama-3.1-8B", "--gpu", "H100")


@pytest.fixture
def config(tmp_path):
    """Write a config.json and get its path."""

    def write(text):
        path = tmp_path / "config.json"
        path.write_text(text)
        return path

    return write


def test_a_missing_config(refused, tmp_path):
    line = refused("coefficients", "--model", tmp_path / "config.json", "--gpu", "H100")
    assert str(tmp_path / "config.json") in line


def test_a_malformed_config(refused, config):
    path = config('{"model_type": "llama",\n "hidden_size": }')
    line = refused("coefficients", "--model", path, "--gpu", "H100")
    assert f"{path}, line 2: malformed JSON" in line


def test_a_config_that_lacks_a_size(refused, config):
    path = config('{"model_type": "llama", "hidden_size": 4096}')
    assert str(path) in refused("coefficients", "--model", path, "--gpu", "H100")


def test_an_unknown_quantization_in_a_config(refused, config):
    quantized = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 8, "num_attention_heads": 16, "vocab_size": 32000,
        "quantization_config": {"quant_method": "magic"},
    }  # fmt: skip
    path = config(json.dumps(quantized))
    line = refused("coefficients", "--model", path, "--gpu", "H100")
    assert str(path) in line
    assert "magic" in line


def test_an_unknown_quantization_flag(refused):
    line = refused("coefficients", *LLAMA, "--quantization", "magic")
    assert "the number format 'magic' is unknown: use one of bf16" in line


def test_a_tensor_parallel_size_that_does_not_divide_the_heads(refused):
    line = refused("coefficients", *LLAMA, "--tensor-parallel-size", 3)
    assert "--tensor-parallel-size 3 " in line
    assert " 32 " in line


def test_a_gpu_without_a_bandwidth(refused, tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text('{"X1": {"compute_tflops_fp16": 100, "memory_gb": 80, "sm_count": 100}}')
    line = refused("coefficients", "--model", "Llama-3.1-8B", "--gpu", path)
    assert str(path) in line
    assert "bandwidth" in line


@pytest.mark.parametrize("batch", ["-5 decode @ 100", "5 decode @ -100", "some decode @ 3"])
def test_a_negative_token_count(refused, batch):
    assert f"the part '{batch}' of the batch cannot be read" in refused(
        "coefficients", *LLAMA, "--batch", batch
    )


def test_an_empty_table(refused, tmp_path):
    (tmp_path / "list.csv").touch()
    line = refused("coefficients", "--configs", tmp_path / "list.csv", "--out", tmp_path / "t.csv")
    assert f"{tmp_path / 'list.csv'} has no configurations" in line
    assert not (tmp_path / "t.csv").exists()


def test_a_truncated_checkpoint(refused, tmp_path, checkpoint_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(checkpoint_path.read_bytes()[:5000])
    line = refused("coefficients", *LLAMA, "--checkpoint", path, "--json", tmp_path / "x.json")
    assert str(path) in line
    assert "cut off" in line
    assert not (tmp_path / "x.json").exists()


def test_a_missing_checkpoint(refused, tmp_path):
    line = refused("coefficients", *LLAMA, "--checkpoint", tmp_path / "none.safetensors")
    assert "no checkpoint at" in line
    assert "python train.py" in line


def test_an_unknown_model_names_close_ones(refused, monkeypatch):
    monkeypatch.setattr("pinn.specs.model_names.hub_is_reachable", lambda: False)
    assert "Llama-3.1-8B" in refused("coefficients", "--model", "Lama-3.1-8B", "--gpu", "H100")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("coefficients",), "model is missing: give --model"),
        (("coefficients", "--model", "Llama-3.1-8B"), "gpu is missing: give --gpu"),
        (("nonsense",), "No such command 'nonsense'"),
        (("coefficient",), "Did you mean 'coefficients'?"),
        (("coefficients", "--tensor-parallel-size", "two"), "--tensor-parallel-size"),
        (("coefficients", "--warp"), "--warp"),
        (("coefficients", "--grid", "gpu=H100"), "is given without --out"),
        (("coefficients", *LLAMA, "--out", "t.csv"), "use --json"),
        (("coefficients", "--grid", "gpu=H100", "--out", "t.xls"), "ends in .csv, .json"),
        (("export", "table"), "Missing option '--out'"),
    ],
)
def test_arguments_that_do_not_fit(refused, arguments, words):
    assert words in refused(*arguments)


def test_a_folder_that_cannot_be_written(refused, tmp_path):
    (tmp_path / "file").touch()
    line = refused("coefficients", *LLAMA, "--json", tmp_path / "file" / "x.json")
    assert str(tmp_path / "file") in line
