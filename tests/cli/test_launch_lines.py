"""Launch commands of people's own: what they decide, and what their engine refuses of them."""

import json
import re
from pathlib import Path

import pytest

from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.launch_line import read_launch
from pinn.errors import PinnError, RefusedError
from pinn.specs.flags import flags_of
from pinn.specs.gpu import load_gpu

HERE = Path(__file__).parent
ENGINE_FLAGS = {flag.name: flag for flag in flags_of(EngineSpec)}


def lines_of(name):
    texts = (HERE / name).read_text().splitlines()
    return [tuple(text.split(" ;; ")) for text in texts if text and text[0] != "#"]


def plain(name, value):
    return json.loads(value) if name == "speculative_config" and value[0] == "{" else str(value)


def deployed(command, gpu):
    """Return what is read, checked as a command would check it, and the deployment."""
    found = read_launch(command, load_gpu(gpu)).configuration
    EngineSpec(**{k: ENGINE_FLAGS[k].read(v) for k, v in found.items() if k in ENGINE_FLAGS})
    served = {k: v for k, v in found.items() if k not in ENGINE_FLAGS}
    return found, make_deployment(canonical({**served, "gpu": gpu}))


ACCEPTED, REFUSED = lines_of("launch_lines.txt"), lines_of("refused_lines.txt")


def test_there_are_enough_of_them():
    assert len({command for *_, command in ACCEPTED}) >= 60
    assert len({command for *_, command in REFUSED}) >= 20


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("gpu", "expected", "command"), ACCEPTED)
def test_what_decides_the_time_is_taken_and_nothing_else(gpu, expected, command):
    found, deployment = deployed(command, gpu)
    wanted = dict(part.split("=", 1) for part in expected.split())
    wanted.setdefault("engine", "vllm")
    assert {k: plain(k, v) for k, v in found.items()} == {k: plain(k, v) for k, v in wanted.items()}
    assert deployment.recipe.token_budget > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("gpu", "reason", "source", "command"), REFUSED)
def test_what_the_engine_refuses_is_refused_and_forced(gpu, reason, source, command):
    with pytest.raises(RefusedError) as error:
        deployed(command, gpu)
    assert re.search(reason, str(error.value)), error.value
    assert re.search(source, str(error.value)), error.value
    found = read_launch(command, load_gpu(gpu)).configuration
    assert make_deployment(canonical({**found, "gpu": gpu, "force": True})).force


@pytest.mark.parametrize(
    ("engine", "version", "source"),
    [
        ("vllm", "0.15.1", "verify_with_parallel_config"),
        ("vllm", "", "verify_with_parallel_config; assumed for vllm 0.33.0"),
        ("sglang", "0.5.12", "QKVParallelLinear"),
        ("trtllm", "", "assumed of TensorRT-LLM as of vllm 0.15.1 vllm/config/model.py: "
         "verify_with_parallel_config"),
    ],
)  # fmt: skip
def test_a_refusal_says_whether_its_source_is_of_the_served_release(engine, version, source):
    given = {"model": "Llama-3.1-8B", "gpu": "H100", "tensor_parallel_size": 3}
    with pytest.raises(RefusedError) as error:
        make_deployment(given | {"engine": engine, "engine_version": version})
    assert "(source: " in str(error.value)
    assert str(error.value).endswith(f"{source})")


def test_every_flag_is_in_one_of_three_lists():
    found = read_launch(
        "NCCL_DEBUG=INFO VLLM_SOMETHING=1 vllm serve Qwen/Qwen3-8B -tp 2 --port 8000 --enable-dbo "
        '--kv-transfer-config \'{"kv_connector":"NixlConnector"}\''
    )
    assert set(found.taken) == {"model Qwen/Qwen3-8B", "-tp 2"}
    assert found.no_effect == ["--port 8000", "NCCL_DEBUG=INFO"]
    assert [text.split()[0] for text in found.unmodelled] == [
        "--enable-dbo", "--kv-transfer-config", "VLLM_SOMETHING=1",
    ]  # fmt: skip
    assert [line.split(":")[0] for line in found.lines] == [
        "taken from the command", "no effect on predictions", "not modelled",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("vllm serve Qwen/Qwen3-8B --tensor-paralel-size 2", "did you mean --tensor-parallel-size"),
        (
            "python -m sglang.launch_server --model-path a --chunk-prefill-size 1",
            "--chunked-prefill",
        ),
        ("vllm serve --port 8000", "names no model"),
        ("vllm serve Qwen/Qwen3-8B --max-num-seqs", "the flag --max-num-seqs has no value"),
        ("vllm serve 'Qwen/Qwen3-8B", "check the command's quotes"),
        ("llama-server -m model.gguf", "starts none of the known engines"),
        ("vllm serve Qwen/Qwen3-8B --compilation-config '{'", "JSON"),
        ("vllm serve Qwen/Qwen3-8B --hf-overrides 3", "must be a JSON object"),
        (
            "python -m sglang.launch_server --model-path a --chunked-prefill-size x",
            "cannot be read",
        ),
        ("vllm serve Qwen/Qwen3-8B --no-tensor-parallel-size 3", "not a known flag of vllm"),
        ("vllm serve Qwen/Qwen3-8B --config.a 2", "not a known flag of vllm"),
        ("python -m sglang.launch_server --model Qwen/Qwen3-8B -O1", "not a known flag of sglang"),
        ("vllm serve Qwen/Qwen3-8B --enforce-eager.a=1", "not a known flag of vllm"),
        ("vllm serve Qwen/Qwen3-8B -cc.cudagraph_mode=FULL -cc.cudagraph_mode.x=1", "JSON object"),
        ("vllm serve Qwen/Qwen3-8B -cc [1] -cc.x=1", "JSON object"),
        ("vllm serve Qwen/Qwen3-8B --seed --port 3", "the flag --seed has no value"),
        ("vllm serve Qwen/Qwen3-8B --enforce-eager false", "'false' belongs to no flag"),
        ("vllm serve Qwen/Qwen3-8B --enable-prefix-caching=maybe", "use true or false"),
        ("vllm serve Qwen/Qwen3-8B --rope-scaling 3", "--rope-scaling must be a JSON object"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(command, message):
    with pytest.raises(PinnError, match=message) as error:
        read_launch(command)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("vllm serve Qwen/Qwen3-8B -cc '{\"cudagraph_mode\":null}'", "cudagraph_mode", None),
        ("vllm serve Qwen/Qwen3-8B --rope-scaling '{\"type\":\"yarn\",\"factor\":4}'",
         "force", True),
        ("vllm serve Qwen/Qwen3-8B -tp 2 --tensor-parallel-size 4 -tp 8",
         "tensor_parallel_size", "8"),
        ("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1 vllm serve Qwen/Qwen3-8B", "precision", None),
        ("docker run --env=VLLM_MXFP4_USE_MARLIN=1 vllm/vllm-openai:v0.19.0 --model a/b",
         "moe_backend", "marlin"),
        ("VLLM_FLOAT32_MATMUL_PRECISION=medium vllm serve Qwen/Qwen3-8B",
         "float32_matmul_precision", "medium"),
        ("python -m sglang.launch_server --model-path a/b --enable-tf32-matmul",
         "float32_matmul_precision", "high"),
        ("VLLM_MXFP4_USE_MARLIN=1 python -m sglang.launch_server --model-path a/b",
         "moe_backend", None),
    ],
)  # fmt: skip
def test_the_last_word_counts_and_only_what_the_engine_reads(command, name, value):
    assert read_launch(command, load_gpu("B200")).configuration.get(name) == value


def test_a_config_file_goes_behind_what_is_typed_and_before_it_in_tensorrt_llm(tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text(
        "tensor-parallel-size: 4\nmax_num_seqs: 64\nport: 1\nenable-prefix-caching: no\n"
    )
    found = read_launch(f"vllm serve Qwen/Qwen3-8B --max-num-seqs 32 --config {path}").configuration
    assert (found["tensor_parallel_size"], found["max_num_seqs"]) == (4, "32")
    assert found["enable_prefix_caching"] is False
    path.write_text("max_batch_size: 64\nkv_cache_config:\n  dtype: fp8\n")
    command = f"trtllm-serve Qwen/Qwen3-8B --max_batch_size 32 --extra_llm_api_options {path}"
    found = read_launch(command).configuration
    assert (found["max_num_seqs"], found["kv_cache_dtype"]) == (64, "fp8")
    path.write_text("max_batch_sise: 64\n")
    with pytest.raises(PinnError, match="did you mean --max-batch-size"):
        read_launch(command)
