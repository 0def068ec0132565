import pytest
from parameter_counts import count_parameters

from pinn.specs.catalog import load_model
from pinn.specs.huggingface import model_from_config

HUB = "hub page, size of the safetensors files' tensors"
#: Name, published parameters in all (10^9), source.
TOTAL = [
    ("meta-llama/Llama-2-7b-hf", 6.74, HUB),
    ("meta-llama/Llama-2-13b-hf", 13.0, HUB),
    ("meta-llama/Llama-2-70b-hf", 69.0, HUB),
    ("meta-llama/Meta-Llama-3.1-8B", 8.03, HUB),
    ("meta-llama/Meta-Llama-3.1-70B", 70.6, HUB),
    ("meta-llama/Meta-Llama-3.1-405B", 406, HUB),
    ("meta-llama/Llama-3.2-1B", 1.23, "model card"),
    ("meta-llama/Llama-3.2-3B", 3.21, "model card"),
    ("codellama/CodeLlama-34b-hf", 33.7, HUB),
    ("01-ai/Yi-6B", 6.06, HUB),
    ("01-ai/Yi-34B", 34.4, HUB),
    ("mistralai/Mistral-7B-v0.1", 7.24, HUB),
    ("mistralai/Mistral-Nemo-Instruct-2407", 12.2, HUB),
    ("mistralai/Mistral-Small-24B-Base-2501", 23.6, HUB),
    ("mistralai/Mistral-Large-Instruct-2407", 123, "model card"),
    ("Qwen/Qwen2.5-0.5B", 0.49, "model card"),
    ("Qwen/Qwen2.5-7B", 7.61, "model card"),
    ("Qwen/Qwen2.5-14B", 14.7, "model card"),
    ("Qwen/Qwen2.5-32B", 32.5, "model card"),
    ("Qwen/Qwen2.5-72B", 72.7, "model card"),
    ("Qwen/Qwen3-0.6B", 0.6, "model card"),
    ("Qwen/Qwen3-4B", 4.0, "model card"),
    ("Qwen/Qwen3-8B", 8.2, "model card"),
    ("Qwen/Qwen3-14B", 14.8, "model card"),
    ("Qwen/Qwen3-32B", 32.8, "model card"),
    ("google/gemma-2-9b", 0.918 + 8.324, "Gemma 2 report (arXiv 2408.00118), table 2"),
    ("google/gemma-2-27b", 1.180 + 26.047, "Gemma 2 report (arXiv 2408.00118), table 2"),
    ("google/gemma-3-4b-it", 0.675 + 3.209, "Gemma 3 report (arXiv 2503.19786), table 1"),
    ("google/gemma-3-12b-it", 1.012 + 10.759, "Gemma 3 report (arXiv 2503.19786), table 1"),
    ("google/gemma-3-27b-it", 1.416 + 25.600, "Gemma 3 report (arXiv 2503.19786), table 1"),
    ("microsoft/Phi-3-mini-4k-instruct", 3.8, "model card"),
    ("microsoft/Phi-3-medium-4k-instruct", 14.0, "model card"),
    ("microsoft/phi-4", 14.7, HUB),
    ("mistralai/Mixtral-8x7B-v0.1", 46.7, "release note"),
    ("mistralai/Mixtral-8x22B-v0.1", 141, "release note"),
    ("Qwen/Qwen1.5-MoE-A2.7B", 14.3, "model card"),
    ("Qwen/Qwen3-30B-A3B", 30.5, "model card"),
    ("Qwen/Qwen3-235B-A22B", 235, "model card"),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480, "model card"),
    ("deepseek-ai/DeepSeek-V2-Lite", 15.7, "model card"),
    ("deepseek-ai/DeepSeek-V2", 236, "model card"),
    ("deepseek-ai/DeepSeek-V3", 671, "model card"),
    ("moonshotai/Kimi-K2-Instruct", 1040, "Kimi K2 report (arXiv 2507.20534), table 2"),
    ("MiniMaxAI/MiniMax-M2.5", 230, "model card"),
    ("openai/gpt-oss-20b", 20.91, "gpt-oss model card (arXiv 2508.10925), table 1"),
    ("openai/gpt-oss-120b", 116.83, "gpt-oss model card (arXiv 2508.10925), table 1"),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 109, "model card; 0.9 of it are vision"),
    ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 400, "model card"),
    ("zai-org/GLM-4.5-Air", 106, "model card"),
    ("zai-org/GLM-4.5", 355, "model card; counts the multi-token layer"),
]
#: Name, published parameters per token (10^9), whether they count the input embedding, source.
ACTIVE = [
    ("mistralai/Mixtral-8x7B-v0.1", 12.9, True, "release note"),
    ("mistralai/Mixtral-8x22B-v0.1", 39, True, "release note"),
    ("Qwen/Qwen1.5-MoE-A2.7B", 2.7, True, "model card"),
    ("Qwen/Qwen3-30B-A3B", 3.3, True, "model card"),
    ("Qwen/Qwen3-235B-A22B", 22, True, "model card"),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 35, True, "model card"),
    ("deepseek-ai/DeepSeek-V2", 21, False, "model card"),
    ("deepseek-ai/DeepSeek-V3", 37, False, "model card"),
    ("moonshotai/Kimi-K2-Instruct", 32.6, True, "Kimi K2 report (arXiv 2507.20534), table 2"),
    ("openai/gpt-oss-20b", 3.61, False, "gpt-oss model card (arXiv 2508.10925), table 1"),
    ("openai/gpt-oss-120b", 5.13, False, "gpt-oss model card (arXiv 2508.10925), table 1"),
    ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 17, True, "model card"),
]


@pytest.mark.parametrize(("name", "published", "source"), TOTAL)
def test_total_is_within_two_percent_of_the_published_figure(name, published, source):
    found = count_parameters(load_model(name)).total / 1e9
    assert found == pytest.approx(published, rel=0.02), source


@pytest.mark.parametrize(("name", "published", "with_embedding", "source"), ACTIVE)
def test_active_is_within_two_percent(name, published, with_embedding, source):
    count = count_parameters(load_model(name))
    found = count.active + (count.embedding if with_embedding else 0)
    assert found / 1e9 == pytest.approx(published, rel=0.02), source


def test_hand_count_of_a_small_model(config):
    count = count_parameters(model_from_config(config(), "test"))
    attention = 1024 * (16 + 4 + 4) * 64 + 16 * 64 * 1024
    norms = 2 * 1024
    layer = attention + 3 * 1024 * 4096 + norms
    assert count.total == 2 * 32000 * 1024 + 8 * layer + 1024
    assert count.embedding == 32000 * 1024


def test_tied_embeddings_are_counted_once(config):
    free = count_parameters(model_from_config(config(), "test"))
    tied = count_parameters(model_from_config(config(tie_word_embeddings=True), "test"))
    assert free.total - tied.total == 32000 * 1024
    assert free.active == tied.active == tied.total


@pytest.mark.parametrize(("key", "factor"), [("num_experts", 4), ("num_experts_per_tok", 2)])
def test_experts_grow_the_total_and_top_k_the_active(config, key, factor):
    values = config(
        model_type="qwen3_moe",
        num_experts=16,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
    )
    small = count_parameters(model_from_config(values, "test"))
    large = count_parameters(model_from_config({**values, key: values[key] * factor}, "test"))
    expert = 8 * 3 * 1024 * 256
    if key == "num_experts":
        assert large.total - small.total == 48 * (expert + 8 * 1024)
        assert large.active - small.active == 48 * 8 * 1024  # the router's rows
    else:
        assert (large.total - small.total, large.active - small.active) == (0, 2 * expert)
