"""Audio clips as tokens of the prompt, by hand and against transformers' processors."""

import importlib
import json
from itertools import pairwise

import pytest

from pinn.api.requests import PredictionRequest
from pinn.errors import PinnError
from pinn.simulator.workloads.load import asked_load
from pinn.specs.audio import AudioReader, audio_reader
from pinn.specs.catalog import load_model
from pinn.specs.media import Unread
from pinn.specs.request_media import request_media

WHISPER = {"d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
           "encoder_layers": 32, "max_source_positions": 1500, "num_mel_bins": 128}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 128256, "max_position_embeddings": 131072}  # fmt: skip
ULTRAVOX = {"model_type": "ultravox", "hidden_size": 4096, "stack_factor": 8,
            "torch_dtype": "bfloat16", "audio_config": WHISPER, "text_config": LLAMA}  # fmt: skip
LOAD = {"input_len": 100, "output_len": 10, "concurrency": 4, "num_prompts": 8}
SECONDS = (0.31, 1, 2.5, 7.77, 13.013, 29.99, 30, 31, 45.2, 90.5)


def reader(model_type, audio, **more):
    return audio_reader({"model_type": model_type, "audio_config": audio, **more})


@pytest.mark.parametrize(
    ("model_type", "more", "seconds", "tokens"),
    [
        ("qwen2_audio", {}, 10, 250),  # 1,000 frames, every fourth
        ("qwen2_audio", {}, 100, 750),  # the processor drops what is beyond 30 s
        ("voxtral", {}, 31, 2 * 375),  # chunks of 30 s, padding counts
        ("ultravox", {"stack_factor": 8}, 31, 188 + 7),  # 1,500 and 50 positions, eight a token
        ("gemma3n", {}, 5, 188),
    ],
)
def test_tokens_of_a_clip_by_hand(model_type, more, seconds, tokens):
    conformer = {"hidden_size": 1536, "conf_num_hidden_layers": 12, "conf_num_attention_heads": 8,
                 "conf_reduction_factor": 4}  # fmt: skip
    own = conformer if model_type == "gemma3n" else WHISPER
    assert reader(model_type, own, **more).item(seconds).tokens == tokens


def test_an_encoder_sees_chunks_and_windows():
    # Qwen2-Audio pads every clip to 30 s; Voxtral's chunks do not see each other.
    assert reader("qwen2_audio", WHISPER).item(1)[2:] == (1500, 1500)
    assert reader("voxtral", WHISPER).item(61)[2:] == (4500, 1500)
    thinker = {"model_type": "qwen2_5_omni_thinker", "audio_config": WHISPER | {"n_window": 100}}
    omni = {"model_type": "qwen2_5_omni", "thinker_config": thinker}
    assert audio_reader(omni).item(30) == (750, 750, 1500, 100)
    conformer = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8,
                 "attention_chunk_size": 12, "attention_context_left": 13}  # fmt: skip
    own = reader("gemma4", conformer)
    assert (own.encoder.full_layers, own.encoder.window_patches) == (0, 24)


def test_longer_clips_have_no_fewer_tokens_and_no_less_work():
    for model_type in ("qwen2_audio", "voxtral", "ultravox"):
        own = reader(model_type, WHISPER, stack_factor=8)
        items = [own.item(seconds) for seconds in SECONDS]
        assert all(a.tokens <= b.tokens for a, b in pairwise(items))
        flop = [item.flop(own.encoder) for item in items]
        assert all(0 < a <= b for a, b in pairwise(flop))


def test_flop_of_a_clip_by_hand():
    own = reader("qwen2_audio", WHISPER, text_config={"hidden_size": 4096})
    layers = 32 * (4 * 1280**2 + 2 * 1280 * 5120)
    convolutions = 2 * 3 * 128 * 1280 + 3 * 1280 * 1280
    flop = 2 * ((layers + convolutions) * 1500 + 1280 * 4096 * 750) + 4 * 1280 * 32 * 1500**2
    assert own.item(30).flop(own.encoder) == flop


def test_what_cannot_be_read_says_why():
    assert audio_reader({"model_type": "llama"}) is None
    assert "no rule is known for model_type 'brand_new'" in reader("brand_new", WHISPER).reason
    assert "lacks the encoder's width" in reader("voxtral", {"num_mel_bins": 128}).reason
    assert "windows or stages" in reader("ultravox", WHISPER).reason
    elsewhere = {"model_type": "ultravox", "text_model_id": "meta-llama/Llama-3.1-8B-Instruct"}
    with pytest.raises(PinnError, match=r"in the config.json of 'meta-llama.* to text_config"):
        load_model(elsewhere)
    text = load_model(LLAMA | {"torch_dtype": "bfloat16"})
    with pytest.raises(PinnError, match=r"unknown, as its config.json has no audio_config: omit"):
        request_media(text.images, text.audio, "Llama", PredictionRequest(audio_seconds=3.0))


def test_audio_lengthens_every_prompt(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(ULTRAVOX))
    plain, _ = asked_load(None, LOAD, 0, model=path)
    flags = LOAD | {"audio_seconds": 30.0, "audios_per_request": 2}
    load, _ = asked_load(None, flags, 0, model=path)
    more = load.draw().prompt_tokens - plain.draw().prompt_tokens
    assert (more == 2 * 188).all()
    assert load.media.title == "2 audio clips of 30 s"
    assert "--audio-seconds 30 --audios-per-request 2" in " ".join(load.words)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"audio_seconds": 3.0, "images_per_request": 1}, "cannot be used together"),
        ({"audios_per_request": 2}, "give --audio-seconds"),
        ({"audio_seconds": 3.0, "turns": 2}, "cannot be used with --turns"),
        ({"audio_seconds": 3.0, "model": None}, "--audio-seconds is given without --model"),
        ({"audio_seconds": -1.0}, "--audio-seconds must be in"),
    ],
)
def test_audio_that_contradicts_itself(flags, error):
    asked = {"model": ULTRAVOX} | flags
    model = asked.pop("model")
    with pytest.raises(PinnError, match=error):
        asked_load(None, LOAD | asked, 0, model=model)[0].draw()


def test_readers_of_real_shapes_are_read():
    found = load_model(ULTRAVOX)
    assert isinstance(found.audio, AudioReader)
    assert found.images is None
    assert found.left_out == "audio encoder"
    assert found.encoder_parameters == found.audio.encoder.parameters
    conformer = {"attention_dim": 1024, "attention_heads": 16, "linear_units": 1536,
                 "num_blocks": 24}  # fmt: skip
    phi = {"model_type": "phi4mm", "hidden_size": 3072, "audio_processor": {"config": conformer}}
    assert audio_reader(phi).item(30).tokens == 375
    assert isinstance(audio_reader({"model_type": "mllama"}), Unread)


# Counts of transformers' processors.


def module(name, file):
    return importlib.import_module(f"transformers.models.{name}.{file}")


def default_config(name, **parts):
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    return mapping[name](**parts).to_dict()


def bare(name, cls, **attributes):
    """Return a processor without a tokenizer."""
    found = object.__new__(getattr(module(name, f"processing_{name}"), cls))
    vars(found).update(attributes)
    return found


def frames(np, samples, **how):
    extractor = module("whisper", "feature_extraction_whisper").WhisperFeatureExtractor(128)
    found = extractor(np.zeros(samples, np.float32), sampling_rate=16000,
                      return_attention_mask=True, **how)  # fmt: skip
    return int(found["attention_mask"].sum())


def qwen2_audio(np):
    def count(samples):
        own = frames(np, samples, padding="max_length")
        return (((own - 1) // 2 + 1) - 2) // 2 + 1  # processing_qwen2_audio.py: _process_audio

    return count


def qwen2_5_omni(_):
    whisper = module("whisper", "feature_extraction_whisper").WhisperFeatureExtractor
    own = bare("qwen2_5_omni", "Qwen2_5OmniProcessor", feature_extractor=whisper(chunk_length=300))
    return own._get_num_audio_tokens


def qwen3_omni(_):
    whisper = module("whisper", "feature_extraction_whisper").WhisperFeatureExtractor
    own = bare("qwen3_omni_moe", "Qwen3OmniMoeProcessor", feature_extractor=whisper(), n_window=50)
    return own._get_num_audio_tokens


def gemma4(np):
    extractor = module("gemma4", "feature_extraction_gemma4").Gemma4AudioFeatureExtractor()
    own = bare("gemma4", "Gemma4Processor", feature_extractor=extractor, audio_seq_length=750)
    return lambda samples: own._compute_audio_num_tokens(np.zeros(samples), 16000)


def phi4(np):
    extractor = module("phi4_multimodal", "feature_extraction_phi4_multimodal")
    found = extractor.Phi4MultimodalFeatureExtractor()

    def count(samples):
        clip = np.zeros(samples, np.float32)
        return int(found(clip, sampling_rate=16000, return_tensors="pt")["audio_embed_sizes"][0])

    return count


CASES = {
    "qwen2_audio": (qwen2_audio, {}),
    "qwen2_5_omni_thinker": (qwen2_5_omni, {}),
    "qwen3_omni_moe_thinker": (qwen3_omni, {}),
    "gemma4": (gemma4, {"audio_config": {"model_type": "gemma4_audio"}}),
    "phi4_multimodal": (phi4, {}),
}


@pytest.mark.parametrize("model_type", CASES)
def test_tokens_are_those_of_the_processor(model_type):
    pytest.importorskip("transformers", minversion="5.24")
    make, parts = CASES[model_type]
    count = make(pytest.importorskip("numpy"))
    own = audio_reader(default_config(model_type, **parts))
    theirs = {seconds: count(round(16000 * seconds)) for seconds in SECONDS}
    assert {seconds: own.item(seconds).tokens for seconds in SECONDS} == theirs
