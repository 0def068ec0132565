"""GPU memory in engines' logs at start: read back, and used in simulations."""

import json
from dataclasses import asdict

import pytest
import startup_texts as texts
from typer.testing import CliRunner

from pinn.calibration.checks import check_memory_log
from pinn.cli.main import app
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.memory.kv_cache import kv_layout
from pinn.memory.logged_cache import logged_blocks, with_log
from pinn.memory.startup_log import read_startup_log
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.units import GIB

#: Log -> its values, memory in GiB; the log has no other values.
SAID = [
    (texts.VLLM_0_22,
     {"engine": "vllm", "release": "0.22.1", "memory_share": 0.9, "tensor_parallel_size": 2,
      "weights": 34.38, "graphs_estimated": 1.03, "graphs_taken": 0.98, "kv_cache": 88.77,
      "kv_tokens": 2560976, "max_concurrency": 1238.38, "max_model_len": 2068}),
    (texts.VLLM_0_31,
     {"engine": "vllm", "release": "0.31.0", "visible": 79.25, "free_before_load": 78.66,
      "memory_share": 0.92, "tensor_parallel_size": 1, "weights": 15.0, "non_torch": 0.26,
      "activation_peak": 1.44, "graphs_taken": 0.23, "kv_cache": 56.21, "kv_tokens": 460496,
      "max_concurrency": 3.51, "max_model_len": 131072}),
    (texts.vllm_0_10(),
     {"engine": "vllm", "release": "0.10.2", "visible": 44.42, "free_before_load": 43.9,
      "memory_share": 0.9, "tensor_parallel_size": 8, "weights": 27.72, "non_torch": 0.21,
      "activation_peak": 1.4, "graphs_taken": 3.45, "kv_cache": 10.65, "kv_tokens": 238208,
      "max_concurrency": 7.27, "max_model_len": 32768}),
    (texts.VLLM_0_12,
     {"engine": "vllm", "weights": 79.74, "graphs_taken": 0.51, "kv_cache": 41.6,
      "kv_tokens": 635648, "max_concurrency": 77.59, "max_model_len": 8192}),
    (texts.VLLM_0_6,
     {"engine": "vllm", "release": "0.6.5", "visible": 79.22, "memory_share": 0.9,
      "tensor_parallel_size": 1, "weights": 14.96, "non_torch": 1.79, "activation_peak": 1.26,
      "kv_cache": 53.29, "blocks": 27284, "max_concurrency": 53.29, "max_model_len": 8192}),
    (texts.SGLANG_0_5,
     {"engine": "sglang", "free_before_load": 138.02, "memory_share": 0.82,
      "tensor_parallel_size": 8, "weights": 79.8, "graphs_taken": 1.85, "kv_cache": 33.32,
      "kv_tokens": 509157, "max_model_len": 163840}),
    (texts.SGLANG_0_4,
     {"engine": "sglang", "free_before_load": 78.81, "weights": 15.09, "kv_cache": 54.26,
      "kv_tokens": 444500, "max_model_len": 131072}),
    (texts.SGLANG_AFTER_GRAPHS,
     {"engine": "sglang", "free_before_load": 78.81, "memory_share": 0.88,
      "tensor_parallel_size": 1, "weights": 15.09, "graphs_taken": 0.51, "kv_cache": 54.26,
      "kv_tokens": 444500, "max_model_len": 131072}),
    (texts.TRTLLM,
     {"engine": "trtllm", "release": "0.17.0", "kv_cache": 26.91, "kv_tokens": 220480,
      "blocks": 6890}),
]  # fmt: skip
MEMORY = {
    "visible", "free_before_load", "weights", "non_torch", "activation_peak", "graphs_estimated",
    "graphs_taken", "kv_cache",
}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    path = tmp_path / "server.log"

    def read_text(text):
        path.write_text(text)
        return read_startup_log(path)

    return read_text


def deployment(model, gpu, **flags):
    return Deployment(load_model(model), load_gpu(gpu), ServingSpec(**flags))


def llama(**flags):
    return deployment("meta-llama/Llama-3.1-8B", "A100-SXM-80GB", engine_version="0.31.0", **flags)


@pytest.mark.parametrize(("text", "said"), SAID)
def test_each_release_is_read_in_its_own_words(read, text, said):
    found = {name: value for name, value in asdict(read(text)).items() if value is not None}
    gib = {name: v / GIB if name in MEMORY else v for name, v in found.items()}
    assert gib == pytest.approx(said, abs=1e-6)


def test_estimated_graphs_that_0_31_counts_as_activations_are_taken_off(read):
    estimate = "INFO [gpu_model_runner.py:6747] Estimated CUDA graph memory: 0.40 GiB total\n"
    assert read(texts.VLLM_0_31 + estimate).activation_peak == pytest.approx(1.04 * GIB)


def test_a_draft_adds_to_its_target(read):
    draft = """\
[2026-05-01 10:02:10 TP0] Load weight begin. avail mem=20.00 GB
[2026-05-01 10:02:12 TP0] Load weight end. elapsed=2.00 s, type=Draft, avail mem=18.80 GB, \
mem usage=1.20 GB.
[2026-05-01 10:02:12 TP0] KV Cache is allocated. #tokens: 509157, KV size: 0.55 GB
"""
    one = "\n".join(line for line in texts.SGLANG_0_5.splitlines() if "TP1" not in line)
    found = read(f"{one}\n{draft}")
    assert found.weights == pytest.approx(81.0 * GIB)
    assert found.kv_cache == pytest.approx(33.88 * GIB)
    assert found.free_before_load == pytest.approx(138.02 * GIB)


FAILED = [
    ("ValueError: No available memory for the cache blocks. Try increasing "
     "`gpu_memory_utilization` when initializing the engine.", "vllm", {}),
    ("ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB "
     "KV cache is needed, which is larger than the available KV cache memory (7.50 GiB). Based on "
     "the available memory, the estimated maximum model length is 61440. Try increasing "
     "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
     "vllm", {"max_model_len": 131072, "needed": 16.0 * GIB, "available": 7.5 * GIB,
              "longest_fitting": 61440}),
    ("ValueError: To serve at least one request with the model's max seq len (8192), (1.0 GiB KV "
     "cache is needed, which is larger than the available KV cache memory (0.25 GiB). Try "
     "increasing `gpu_memory_utilization`", "vllm",
     {"max_model_len": 8192, "needed": 1.0 * GIB, "available": 0.25 * GIB}),
    ("ValueError: The model's max seq len (131072) is larger than the maximum number of tokens "
     "that can be stored in KV cache (65536). Try increasing `gpu_memory_utilization`", "vllm",
     {"max_model_len": 131072, "longest_fitting": 65536}),
    ("ValueError: Free memory on device cuda:0 (10.2/79.25 GiB) on startup is less than desired "
     "GPU memory utilization (0.92, 72.91 GiB). Decrease GPU memory utilization", "vllm", {}),
    ("ERROR [gpu_model_runner.py:5129] Failed to load model - not enough GPU memory. Try lowering "
     "--gpu-memory-utilization to free memory for weights", "vllm", {}),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current "
     "value: mem_fraction_static=0.5", "sglang", {}),
    ("(EngineCore pid=9) INFO [core.py:130] Initializing a V1 LLM engine (v0.31.0) with config: x\n"
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
     "capacity of 79.25 GiB", "vllm", {}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "engine", "numbers"), FAILED)
def test_a_failed_start_says_why(read, text, engine, numbers):
    found = read(text)
    assert found.engine == engine
    said = {k: v for k, v in asdict(found.failure).items() if v is not None}
    message = said.pop("message")
    assert message in text
    assert said == numbers
    with pytest.raises(PinnError, match=r"of a failed start \(") as refused:
        with_log(EngineSpec(), llama(), found)
    assert message in str(refused.value)


def test_a_later_start_counts_and_a_failure_while_serving_does_not(read):
    begin = "(APIServer pid=1) INFO [api_server.py:1896] vLLM API server version 0.31.0\n"
    failed = f"{begin}{FAILED[0][0]}\n"
    assert read(failed).failure is not None
    found = read(f"{failed}{begin}{texts.VLLM_0_31}")
    assert (found.failure, found.kv_tokens) == (None, 460496)
    assert read(f"{begin}{texts.VLLM_0_31}{failed}").failure is not None
    served = f"{texts.VLLM_0_31}INFO:     Application startup complete.\n{FAILED[-1][0]}\n"
    assert read(served).failure is None


@pytest.mark.parametrize("text", ["", "step,seconds\n1,0.02\n", "non-default args: {'tp_size': 8}"])
def test_a_file_without_memory_is_refused(read, text):
    with pytest.raises(
        PinnError, match="states the GPU memory that vLLM, SGLang or TensorRT-LLM took"
    ):
        read(text)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PinnError, match="cannot be read"):
        read_startup_log(tmp_path / "none.log")


CACHES = [
    (texts.VLLM_0_31, llama, 460496 // 16 - 1),
    (texts.VLLM_0_12, lambda: deployment("deepseek-ai/DeepSeek-R1", "H200", engine_version="0.12.0",
     tensor_parallel_size=8), 635648 // 16 - 1),
    (texts.SGLANG_0_5, lambda: deployment("deepseek-ai/DeepSeek-R1", "H200", engine="sglang",
     engine_version="0.5.12", tensor_parallel_size=8, gpu_memory_utilization=0.82), 509157),
    (texts.TRTLLM, lambda: deployment("meta-llama/Llama-3.1-8B", "H100", engine="trtllm"), 6890),
    # Groups of windowed layers: 88.77 GiB in blocks of 294,912 bytes.
    (texts.VLLM_0_22, lambda: deployment("openai/gpt-oss-120b", "H200", engine_version="0.22.1",
     tensor_parallel_size=2, max_model_len=2068, gpu_memory_utilization=0.9),
     int(88.77 * GIB) // 294912 - 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "server", "blocks"), CACHES)
def test_a_simulated_server_has_the_logged_cache(read, text, server, blocks):
    log, served = read(text), server()
    assert logged_blocks(served, log) == blocks
    assert kv_layout(served, with_log(EngineSpec(), served, log)).blocks == blocks
    if log.engine != "trtllm":  # its log does not name the card
        assert not list(check_memory_log(log, served))


REFUSED = [
    ({"engine": "sglang", "engine_version": ""}, {}, "the log is of vllm, but --engine is sglang"),
    ({"tensor_parallel_size": 2}, {}, "--tensor-parallel-size 1, but the flag is 2"),
    ({}, {"num_gpu_blocks_override": 99}, "--num-gpu-blocks-override and --memory-log both set"),
    ({}, {"kv_cache_memory_bytes": 1e9}, "--kv-cache-memory-bytes and --memory-log both set"),
]


@pytest.mark.parametrize(("flags", "settings", "said"), REFUSED)
def test_a_log_of_another_server_is_refused(read, flags, settings, said):
    served = deployment("meta-llama/Llama-3.1-8B", "A100-SXM-80GB", **flags)
    with pytest.raises(PinnError, match=said):
        with_log(EngineSpec(**settings), served, read(texts.VLLM_0_31))


def test_a_log_that_stops_before_the_cache_is_refused(read):
    log = read("INFO [gpu_model_runner.py:5354] Model loading took 15.0 GiB memory and 4.1 seconds")
    with pytest.raises(PinnError, match="does not state the size of the KV cache"):
        with_log(EngineSpec(), llama(), log)


def test_a_cache_that_the_flags_do_not_explain_is_found(read):
    server = deployment("meta-llama/Llama-3.1-8B", "L40S", engine_version="0.31.0")
    (found,) = check_memory_log(read(texts.VLLM_0_31), server)
    assert "28,780 KV cache blocks per GPU" in found
    (found,) = check_memory_log(read(texts.VLLM_0_31), llama(gpu_memory_utilization=0.5))
    assert found.endswith("0.92, but the flag is 0.5: did you mean --gpu-memory-utilization 0.92?")


def test_simulate_takes_a_log(checkpoint_path, tmp_path, monkeypatch):
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))
    log, out = tmp_path / "server.log", tmp_path / "run.json"
    log.write_text(texts.VLLM_0_31)
    load = ("--input-len", "200", "--output-len", "20", "--concurrency", "4", "--num-prompts", "20")
    served = ["simulate", "--model", "Llama-3.1-8B", "--memory-log", str(log), *load]
    result = CliRunner().invoke(app, [*served, "--gpu", "A100-SXM-80GB", "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "28,780 blocks" in result.stdout
    assert json.loads(out.read_text())["serving"]["num_gpu_blocks_override"] == 28781
    apart = [*served, "--gpu", "H100", "--prefill", "1x tp=1", "--decode", "1x tp=1"]
    result = CliRunner().invoke(app, apart)
    told = "--memory-log cannot be combined with --prefill and --decode"
    assert told in result.output
