"""Models that give vectors or scores instead of tokens."""

from dataclasses import replace

import pytest
from parameter_counts import count_parameters

from pinn import predict, simulate
from pinn.engines.configurations import make_deployment
from pinn.engines.launch_line import read_launch
from pinn.errors import PinnError
from pinn.memory.weights import gpu_weight_bytes
from pinn.physics.costs import model_costs
from pinn.specs.huggingface import model_from_config
from pinn.specs.pooling import with_runner

BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 768,
    "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "vocab_size": 30522, "type_vocab_size": 2, "max_position_embeddings": 512,
}  # fmt: skip
QWEN = {"model": "Qwen/Qwen3-4B", "gpu": "H100"}


def test_an_encoder_has_its_published_parameters():
    model = model_from_config(BERT, "bert-base-uncased")
    assert model.pooled
    assert model.bidirectional
    assert count_parameters(model).total == pytest.approx(109.5e6, rel=0.01)  # with its pooler


@pytest.mark.parametrize(
    ("architecture", "pooled"),
    [
        ("Qwen3ForCausalLM", False),
        ("Qwen3ForSequenceClassification", True),
        ("Qwen3Model", True),
        ("LlamaForRewardModeling", True),
        ("SomeChatModel", False),
    ],
)
def test_the_architecture_says_what_is_served(config, architecture, pooled):
    assert model_from_config(config(architectures=[architecture]), "test").pooled == pooled


def test_a_bidirectional_decoder_is_read_by_its_name(config):
    model = model_from_config(config(architectures=["LlamaBidirectionalModel"]), "test")
    assert model.bidirectional
    assert not model_from_config(config(), "test").bidirectional


def test_an_encoder_of_no_known_family_is_refused(parse):
    with pytest.raises(PinnError, match="bidirectional attention"):
        parse(model_type="brand_new", architectures=["BrandNewForMaskedLM"])


def test_pooling_has_neither_head_nor_sampler_and_as_many_weights():
    served = [make_deployment(QWEN | {"runner": runner}) for runner in ("auto", "pooling")]
    costs = model_costs(served)
    for name in ("head_sequence_s", "sampled_request_s", "sampled_step_s"):
        generates, pools = getattr(costs, name)
        assert generates > pools == 0
    for name in ("gemm_token_s", "prefill_pair_s", "kv_read_s"):
        generates, pools = getattr(costs, name)
        assert generates == pools
    # Its embedding is tied to the head, which is not read, and stays in memory.
    assert gpu_weight_bytes(served[1]) == gpu_weight_bytes(served[0])


def test_tokens_that_attend_both_ways_make_twice_the_pairs():
    one_way = make_deployment(QWEN | {"runner": "pooling"})
    both = replace(one_way, model=replace(one_way.model, bidirectional=True))
    before, after = model_costs([one_way, both]).prefill_pair_s
    assert after == 2 * before
    assert (both.recipe.chunked_prefill, both.recipe.prefix_caching) == (False, False)
    assert (one_way.recipe.chunked_prefill, one_way.recipe.prefix_caching) == (True, True)


def test_pooling_generates_no_tokens():
    load = {"prompt_tokens": 100, "output_tokens": 3, "concurrency": 2, "requests": 4}
    with pytest.raises(PinnError, match="and generates no tokens, got 3"):
        simulate(load, runner="pooling", **QWEN)
    figures = simulate(load | {"output_tokens": 0}, runner="pooling", **QWEN).figures
    assert figures["ttft_mean_ms"] == figures["e2e_mean_ms"] > 0


def test_a_model_without_a_head_cannot_be_asked_to_generate(config):
    model = model_from_config(config(architectures=["LlamaModel"]), "test")
    with pytest.raises(PinnError, match="--runner is generate, but test has no output head"):
        with_runner(model, "generate")


@pytest.mark.parametrize(
    ("flags", "runner"),
    [
        ("--runner pooling", "pooling"),
        ("--task embed", "pooling"),
        ("--convert classify", "pooling"),
        ("--task generate", "generate"),
        ("--convert none", None),
    ],
)
def test_flags_of_a_launch_line(flags, runner):
    found = read_launch(f"vllm serve Qwen/Qwen3-4B {flags}").configuration
    assert found.get("runner") == runner


def test_the_flag_of_sglang():
    line = "python -m sglang.launch_server --model-path Qwen/Qwen3-4B --is-embedding"
    assert read_launch(line).configuration["runner"] == "pooling"


def test_an_example_of_a_pooling_model_is_a_prompt():
    found = predict(runner="pooling", **QWEN).to_json()
    assert all("decode" not in batch["batch"] for batch in found["batches"])
