"""Audio in every function that takes images: one encoder's time everywhere."""

import json

import pytest
from pages import command_on
from typer.testing import CliRunner

import pinn
from pinn.cli.main import app
from pinn.errors import PinnError

VOXTRAL = {
    "model_type": "voxtral", "architectures": ["VoxtralForConditionalGeneration"],
    "torch_dtype": "bfloat16",
    "audio_config": {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
                     "num_attention_heads": 20, "num_mel_bins": 128, "max_source_positions": 1500},
    "text_config": {"model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192,
                    "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8,
                    "head_dim": 128, "vocab_size": 131072, "max_position_embeddings": 131072},
}  # fmt: skip
STEP = "1 prefill 475 @ 0"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(VOXTRAL))
    return str(path)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_steps_and_servers_have_the_same_encoder(model):
    audio = {"gpu": "H100", "audio_seconds": 30.0}
    predicted = pinn.predict(model, **audio, batch=[STEP]).to_json()
    encoder = predicted["encoder"]
    assert (encoder["audios_per_request"], encoder["tokens_per_audio"]) == (1, 375)
    (step,) = predicted["batches"]
    assert step["encoder_us"] == pytest.approx(1e6 * encoder["first_audio_s"])
    parts = pinn.breakdown(model, **audio, batch=[STEP]).to_json()
    assert "1 audio clip of 30 s, 375 tokens" in parts["sources"]["encoder"]
    load = {"input_len": 100, "output_len": 8, "concurrency": 1, "num_prompts": 3}
    heard = pinn.simulate(model=model, **audio, **load).to_json()
    plain = pinn.simulate(model=model, gpu="H100", **load | {"input_len": 475}).to_json()
    assert heard["encoder"] == encoder
    later = heard["ttft_p50_ms"] - plain["ttft_p50_ms"]
    assert later == pytest.approx(1e3 * encoder["first_audio_s"], rel=1e-3)


def test_a_command_simulates_requests_with_audio(model):
    (_, *words), _ = command_on("images_and_audio.md", "pinn simulate")
    typed = [model if "config.json" in word else word for word in words]
    result = CliRunner().invoke(app, typed)
    assert result.exit_code == 0, result.output
    assert "375 tokens" in " ".join(result.output.split())


def test_a_text_model_hears_nothing():
    with pytest.raises(
        PinnError,
        match="has no audio_config: omit audio_seconds, and count these tokens in --input-len",
    ):
        pinn.predict("Qwen/Qwen3-8B", "H100", audio_seconds=3.0)
