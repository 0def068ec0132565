"""Models that are read off their modules."""

import warnings

import pytest
import torch
from torch import nn

from pinn.errors import PinnError, UnknownLayersError
from pinn.specs.catalog import load_model
from pinn.specs.huggingface import ReadSettings, model_from_config
from pinn.specs.model import AttentionSpec, DenseFfnSpec, MoeFfnSpec, mixer_names
from pinn.specs.modules import building
from pinn.specs.modules.from_modules import model_from_modules
from pinn.specs.modules.weights import Shape, experts_of, network_of

DBRX = {
    "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
    "vocab_size": 100352, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip
#: One of each kind of attention, mixer and network that both readers know.
KINDS = (
    "llama", "gpt2", "opt", "falcon", "bloom", "gemma2", "qwen3_moe", "mixtral", "gpt_oss",
    "granitemoehybrid", "deepseek_v2", "deepseek_v32", "glm4_moe", "minimax_m2", "minimax",
    "kimi_linear", "qwen3_next", "jamba", "nemotron_h", "falcon_h1", "mamba2", "phi3",
    "gemma4_text",
)  # fmt: skip


@pytest.fixture
def _transformers():
    reason = "transformers is not installed: extra 'models'"
    pytest.importorskip("transformers", minversion="5.24", reason=reason)


built = pytest.mark.usefixtures("_transformers")


def read(config):
    """The model of a config.json off its modules, whatever its keys tell."""
    refusal = UnknownLayersError("refused")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model_from_modules(config, "test", ReadSettings("test"), refusal)


@built
@pytest.mark.parametrize("model_type", KINDS)
def test_modules_and_keys_tell_the_same_layers(model_type):
    import check_architectures

    config = [*check_architectures.configurations(model_type)][-1].to_dict()
    by_keys, by_modules = model_from_config(config, "test"), read(config)
    assert set(by_modules.layer_groups) == set(by_keys.layer_groups)
    sizes = ("hidden_size", "vocab_size", "tied_embeddings", "max_position", "precisions")
    assert [getattr(by_modules, n) for n in sizes] == [getattr(by_keys, n) for n in sizes]


@built
def test_dbrx_has_its_published_parameters():
    from parameter_counts import count_parameters

    with pytest.warns(UserWarning, match="read from the modules of DbrxForCausalLM .* 40 mixtures"):
        model = load_model(DBRX)
    count = count_parameters(model)
    assert count.total == pytest.approx(132e9, rel=0.01)  # its model card
    assert count.active == pytest.approx(36e9, rel=0.02)
    assert model.moe == MoeFfnSpec(16, 4, 10752)
    assert {g.attention for g in model.layer_groups} == {AttentionSpec(48, 8, 128)}


@built
def test_matrices_beside_the_layers_are_counted():
    config = {"model_type": "modernbert-decoder", "hidden_size": 512, "vocab_size": 1024}
    config |= {
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 768,
        "pad_token_id": 0,
    }
    (side,) = read(config).side_projections
    assert (side[0], side[1].shape()) == (1, (512, 512))  # before the output head


@built
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "lfm2", "full_attn_idxs": [1]}, r"conv.conv.weight \(Conv1d"),
        (
            {"model_type": "diffllama"},
            "DiffLlamaAttention: no supported .* lambda_q1",
        ),
        ({"model_type": "hrm_text"}, "runs 6 times per step"),
        ({"model_type": "minicpm3"}, "differently: keys of its latent attention"),
        ({"model_type": "recurrent_gemma"}, "rg_lru"),
        ({"model_type": "nobody_knows"}, "does not know 'nobody_knows' either"),
        ({"model_type": "lfm2", "num_hidden_layers": 10**9}, "must be at most 1,000, got"),
    ],
)
def test_what_is_not_recognized_is_refused_by_name(config, reason):
    with pytest.raises(PinnError, match=reason) as error:
        read(config)
    assert str(error.value).startswith("refused. Read off modules: ")


def test_code_and_kernels_of_others_are_not_asked_for():
    config = {"auto_map": {"AutoConfig": "x.Y"}, "_attn_implementation": "hub/kernels", "a": 1}
    nested = {"vision_config": config | {"use_pretrained_backbone": True}}
    assert building._safe(config | nested) == {"a": 1, "vision_config": {"a": 1}}


def test_without_transformers_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(PinnError, match=r"nested ffn_config.* install pinn-serving\[models\]"):
        load_model(DBRX)


@pytest.mark.parametrize("experts", [1, 8])
@pytest.mark.parametrize("gated", [True, False])
def test_experts_are_read_whichever_way_their_tensors_are_turned(gated, experts):
    wide = 2 * 96 if gated else 96
    for up, down in (((wide, 64), (64, 96)), ((64, wide), (96, 64))):
        module = nn.Module()
        module.up = nn.Parameter(torch.empty(experts, *up, device="meta"))
        module.down = nn.Parameter(torch.empty(experts, *down, device="meta"))
        assert experts_of(module, 64) == (experts, 64, DenseFfnSpec(96, gated))


def test_three_matrices_of_other_shapes_are_no_network():
    assert network_of([Shape(512, 128), Shape(256, 128), Shape(128, 512)], 128) is None
    assert network_of([Shape(512, 128)], 128) is None


def test_a_file_that_keys_tell_is_not_built(monkeypatch):
    monkeypatch.setattr(building, "build_text_model", lambda _: pytest.fail("built"))
    names = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = {"model_type": "llama", "vocab_size": 1000, "intermediate_size": 1024, **names}
    assert mixer_names(load_model(config)) == "2 full attention"
