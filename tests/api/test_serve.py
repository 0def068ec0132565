"""``pinn serve``: answers of the real application, and of a real process."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from pages import PAGES, blocks, command_on, missing
from typer.testing import CliRunner

import pinn
from pinn.cli.main import app as commands

for needed in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pinn serve needs it")

from starlette.testclient import TestClient  # noqa: E402

from pinn.api.service.answers import Answer, KeptAnswers, Limits, compute  # noqa: E402
from pinn.api.service.app import Settings, make_app  # noqa: E402
from pinn.api.service.endpoints import ENDPOINTS  # noqa: E402
from pinn.api.service.lanes import (  # noqa: E402
    Lane,
    ProcessEndedError,
    QueueFullError,
    TooSlowError,
)

LLAMA = {"model": "Llama-3.1-8B", "gpu": "H100"}
LOAD = {"input_len": 512, "output_len": 16, "num_prompts": 20}
PLAN = LLAMA | LOAD | {
    "slo": "p99 ttft<=2s", "rate": 4, "time_budget": 200, "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
}  # fmt: skip
LIMITS = Limits(300.0, reads_files=True)


@pytest.fixture(scope="module")
def environment(checkpoint_path):
    """Name a small checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PINN_CHECKPOINT", str(checkpoint_path))
        yield


@pytest.fixture(scope="module")
def client(environment):  # noqa: ARG001
    with TestClient(make_app(Settings(1, 8, LIMITS))) as found:
        yield found


def typed(*words):
    result = CliRunner().invoke(commands, [str(word) for word in words])
    assert result.exit_code == 0, result.output


def options(arguments):
    pairs = ((f"--{name.replace('_', '-')}", value) for name, value in arguments.items())
    return [word for pair in pairs for word in pair]


def answered(client, name, body):
    response = client.post(f"/{name}", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response


FLEET = {"kinds": [{"gpu": "H200"}, {"replicas": 2}]}


@pytest.mark.parametrize(
    ("name", "command", "arguments"),
    [
        ("predict", "coefficients", LLAMA | {"batch": "32 decode @ 700", "max_num_seqs": 64}),
        ("predict", "coefficients", LLAMA | {"quantization": "fp8", "engine": "sglang"}),
        ("simulate", "simulate", LLAMA | LOAD | {"rate": "4", "slo": "ttft<=1s for 95 %"}),
        ("sweep", "simulate", LLAMA | LOAD | {"rate": "2,4"}),
        ("simulate_pools", "simulate",
         LLAMA | LOAD | {"rate": "4", "prefill": "1x tp=1", "decode": "1x tp=2"}),
    ],
)  # fmt: skip
def test_an_answer_is_the_json_of_the_command(client, name, command, arguments, tmp_path):
    typed(command, *options(arguments), "--json", tmp_path / "typed.json")
    assert answered(client, name, arguments).text == (tmp_path / "typed.json").read_text()


def test_a_fleet_and_a_trace_are_those_of_the_command(client, tmp_path):
    requests = [
        {"arrival_s": i / 4, "prompt_tokens": 100 + i, "output_tokens": 8} for i in range(9)
    ]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join([",".join(requests[0]), *(
        ",".join(map(str, each.values())) for each in requests
    )]))  # fmt: skip
    (tmp_path / "fleet.yaml").write_text(json.dumps(FLEET))
    files = {"workload": trace, "fleet": tmp_path / "fleet.yaml"}
    typed("simulate", *options(LLAMA | files), "--json", tmp_path / "typed.json")
    expected = json.loads((tmp_path / "typed.json").read_text())
    body = LLAMA | {"workload": requests, "fleet": FLEET}
    found = answered(client, "simulate_fleet", body).json()
    assert without_paths(found) == without_paths(expected)


def without_paths(document):
    return json.loads(
        re.sub(r'"(path|document|sha256)": "[^"]*"', r'"\1": ""', json.dumps(document))
    )


def test_a_plan_is_the_plan_json_of_the_command(client, tmp_path):
    own_cache = ("--cache", tmp_path / "cache")  # nothing is spent on cached results
    typed("plan", *options(PLAN), "--workers", 1, *own_cache, "--out", tmp_path / "plan")
    expected = json.loads((tmp_path / "plan" / "plan.json").read_text())
    found = answered(client, "plan", PLAN).json()
    assert found.pop("seconds") > 0
    expected.pop("seconds")
    found.pop("spent_s")
    assert expected.pop("spent_s")
    assert found == expected
    assert found["choices"][0]["gpu"] == "H100-SXM"


def test_many_are_the_table_of_the_command_and_equal_single_ones(client, tmp_path):
    rows = [{"gpu": gpu, "tensor_parallel_size": tp} for gpu in ("H100", "B200") for tp in (1, 2)]
    batch, model = "32 decode @ 700", "Qwen/Qwen3-30B-A3B"
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    typed("coefficients", "--configs", tmp_path / "rows.json", "--model", model,
          "--batch", batch, "--out", tmp_path / "table.json")  # fmt: skip
    body = {"model": model, "batch": batch}
    found = answered(client, "predict_many", body | {"configurations": rows}).json()
    assert found == {"rows": json.loads((tmp_path / "table.json").read_text()), "refused": {}}
    for row, given in zip(found["rows"], rows, strict=True):
        alone = answered(client, "predict_many", body | {"configurations": [given]}).json()
        (same,) = alone["rows"]
        assert same.keys() == row.keys()
        for name, value in row.items():  # products round by their size
            is_real = isinstance(value, float)
            assert same[name] == (pytest.approx(value, rel=1e-12) if is_real else value), name
        one = answered(client, "predict", body | given).json()
        (step,) = one["batches"]
        assert step["step_time_us"] == pytest.approx(row[f"step_time_us: {batch}"], rel=1e-12)
        assert one["memory"]["kv_tokens"] == row["kv_tokens"]


def test_what_does_not_fit_has_a_reason_and_is_counted(client):
    body = {"model": "Llama-3.1-8B", "gpu": "H100", "skip_invalid": True}
    body["configurations"] = [{"tensor_parallel_size": tp} for tp in (1, 3, 2)]
    found = answered(client, "predict_many", body).json()
    assert [row["tensor_parallel_size"] for row in found["rows"]] == [1, 3, 2]
    assert [row["starts"] for row in found["rows"]] == [True, False, True]
    assert found["refused"] == {found["rows"][1]["reason"]: 1}


PROBLEMS = [
    ("predict", LLAMA | {"tensor_parallel": 2}, 422,
     ["tensor_parallel", "did you mean tensor_parallel_size"]),
    ("predict", LLAMA | {"max_num_seqs": "many"}, 422,
     ["max_num_seqs", "'many'", "whole number", "omit the flag"]),
    ("predict", LLAMA | {"gpu_memory_utilization": 1.5}, 422,
     ["gpu_memory_utilization", "1.5", "omit the flag"]),
    ("predict", {"model": "Lama-3.1-8B", "gpu": "H100"}, 422, ["Lama-3.1-8B", "Llama-3.1-8B"]),
    ("predict", LLAMA | {"gpu": "H1000"}, 422, ["H1000", "did you mean"]),
    ("predict", LLAMA | {"memory_log": "none.log"}, 422,
     ["memory_log", "none.log", "give the path"]),
    ("predict", [1], 422, ["body must be a JSON object", "[1]"]),
    ("predict_many", LLAMA, 422, ["configurations is missing"]),
    ("predict_many", LLAMA | {"configurations": 5}, 422, ["configurations", "got 5", "give"]),
    ("predict_many", LLAMA | {"configurations": [{}] * 10_001}, 422,
     ["configurations", "10,001", "10,000", "several requests"]),
    ("simulate", LLAMA | LOAD | {"rate": -1}, 422, ["rate", "-1"]),
    ("simulate", LLAMA | {"workload": 5}, 422, ["workload", "got 5", "give a path"]),
    ("simulate", LLAMA | LOAD | {"rate": 10, "num_prompts": 2_000_000}, 422,
     ["num_prompts", "2000000", "1000000", "omit the flag"]),
    ("simulate_fleet", LLAMA | LOAD | {"rate": 1, "fleet": [1]}, 422, ["fleet", "[1]", "such as"]),
    ("plan", PLAN | {"workers": 8}, 422, ["workers", "8", "is set when the service starts"]),
    ("plan", PLAN | {"time_budget": "inf"}, 422, ["time_budget", "300 s", "inf", "give a shorter"]),
    ("plan", LLAMA | LOAD | {"rate": 4}, 422, ["slo"]),
    ("nothing", {}, 404, ["/nothing", "/predict"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "status", "words"), PROBLEMS)
def test_a_bad_request_gets_problem_details(client, monkeypatch, name, body, status, words):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    response = client.post(f"/{name}", json=body)
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert response.status_code == problem["status"] == status
    assert problem["type"] == "about:blank"
    assert [word for word in words if word not in problem["detail"]] == [], problem["detail"]


@pytest.mark.parametrize(
    ("content", "media", "status", "words"),
    [
        (b'{"model": ', "application/json", 422, ["body", "malformed JSON"]),
        (b'{"gpu": 1, "gpu": 2}', "application/json", 422, ["'gpu' occurs twice"]),
        (b"\xff", "application/json", 422, ["UTF-8"]),
        (b"[" * 100_000, "application/json", 422, ["nested"]),
        (b"{}", "text/plain", 415, ["Content-Type", "text/plain", "application/json"]),
        (b" " * (8 * 2**20 + 1), "application/json", 413, ["8,388,608", "several requests"]),
    ],
)
def test_a_body_that_is_none_gets_problem_details(client, content, media, status, words):
    response = client.post("/predict", content=content, headers={"Content-Type": media})
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    detail = response.json()["detail"]
    assert [word for word in words if word not in detail] == [], detail


def test_a_method_that_no_path_has(client):
    response = client.get("/predict")
    assert response.status_code == 405
    assert "GET /predict" in response.json()["detail"]


def kept(client):
    return float(re.search(r"^pinn_kept_answers_total (\S+)", client.get("/metrics").text, re.M)[1])


def test_an_answer_is_kept_as_long_as_all_that_decides_it_stays(client, tmp_path):
    before, body = kept(client), LLAMA | {"max_num_seqs": 17}
    first, again = (answered(client, "predict", body) for _ in range(2))
    assert first.content == again.content
    assert kept(client) == before + 1
    config = tmp_path / "config.json"
    shape = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32000,
        "num_attention_heads": 16, "num_hidden_layers": 8,
    }  # fmt: skip
    times = []
    for layers in (8, 16):
        config.write_text(json.dumps(shape | {"num_hidden_layers": layers}))
        body = {"model": str(config), "gpu": "H100", "batch": "8 decode @ 500"}
        times.append(answered(client, "predict", body).json()["batches"][0]["step_time_us"])
    assert times[1] > 1.2 * times[0]
    assert kept(client) == before + 1


def test_kept_answers_stay_within_their_limit(environment, tmp_path, monkeypatch):  # noqa: ARG001
    monkeypatch.chdir(tmp_path)
    found = KeptAnswers(most_bytes=100_000)
    for i in range(1000):
        found.keep(str(i), Answer(200, b"x" * 2000, texts=frozenset({"H100"})))
    assert found.find("0") is None
    assert found.find("999") is not None
    assert len([i for i in range(1000) if found.find(str(i))]) == 32
    found.keep("problem", Answer(422, b"{}"))
    assert found.find("problem") is None
    (tmp_path / "H100").touch()
    assert found.find("999") is None


def test_keys_hold_the_checkpoint(environment, tmp_path, checkpoint_path, monkeypatch):  # noqa: ARG001
    found, content = KeptAnswers(), json.dumps(LLAMA).encode()
    key = found.key("predict", content)
    assert key != found.key("plan", content)
    assert key != found.key("predict", content + b" ")
    other = tmp_path / "other.safetensors"
    other.write_bytes(checkpoint_path.read_bytes())
    monkeypatch.setenv("PINN_CHECKPOINT", str(other))
    assert key != found.key("predict", content)


def test_warnings_of_a_command_are_in_a_header(client):
    body = LLAMA | {"enable_lora": True}
    with pytest.warns(UserWarning, match="LoRA") as said:
        pinn.predict(**body)
    expected = list(dict.fromkeys(str(each.message) for each in said))
    for more in ({}, {}, {"max_num_seqs": 9}):
        response = answered(client, "predict", body | more)
        assert json.loads(response.headers["pinn-warnings"]) == expected


@pytest.mark.parametrize(
    "more",
    [
        {"model": "./config.json"}, {"model": "/etc/passwd"}, {"model": "nobody/nothing"},
        {"gpu": "gpu.json#X"}, {"coefficients": "/etc/passwd"}, {"memory_log": "~/log"},
        {"serve": "vllm serve Llama-3.1-8B"}, {"speculative_config": '{"model": "/x"}'},
        {"speculative_config": {"method": "eagle3", "model": "/x"}}, {"model": "Makefile"},
    ],
)  # fmt: skip
def test_a_service_for_other_machines_reads_no_file(more, environment):  # noqa: ARG001
    content = json.dumps(LLAMA | more).encode()
    answer = compute("predict", content, Limits(300.0, reads_files=False))
    assert answer.status == 422
    assert "may name a file" in json.loads(answer.content)["detail"]


def test_openapi_has_the_arguments_of_every_function(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/health", "/metrics", *(f"/{name}" for name in ENDPOINTS)}
    for name, endpoint in ENDPOINTS.items():
        operation = paths[f"/{name}"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["properties"]) == set(endpoint.arguments)
        assert all(each["description"] for each in schema["properties"].values())
        assert {"200", "422", "503", "504"} <= set(operation["responses"])
    sizes = paths["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert sizes["properties"]["max_num_seqs"]["anyOf"][0] == {"type": "integer"}
    assert "workers" not in ENDPOINTS["plan"].arguments


async def gone(pid):
    """Wait until there is no such process."""
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.1)
    return False


def test_requests_of_the_page(client):
    (page,) = (each for each in PAGES if each.name == "serve.md")
    many, fleet, problem, health = (
        json.loads(block.text) for block in blocks(page) if block.language == "json"
    )
    assert len(answered(client, "predict_many", many).json()["rows"]) > 5
    found = answered(client, "simulate_fleet", fleet).json()
    assert found["completed_requests"] == 1
    refused = client.post("/predict", json=LLAMA | {"tensor_parallel": 2})
    assert refused.json() == problem
    assert client.get("/health").json().keys() == health.keys()
    words, shown = command_on("serve.md", "curl")
    body = json.loads(words[words.index("-d") + 1])
    printed = json.dumps(answered(client, "predict", body).json()["batches"][0], indent=2)
    assert not missing(shown, printed)


def test_a_lane_refuses_more_than_may_wait_and_ends_what_takes_too_long():
    async def run():
        lane = Lane(1, 1, 60.0)
        first = await lane.run(os.getpid)
        lane._timeout_s = 1.0
        slow = asyncio.create_task(lane.run(time.sleep, 60))
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(lane.run(os.getpid))
        await asyncio.sleep(0.1)
        assert (lane.running, lane.waiting) == (1, 1)
        with pytest.raises(QueueFullError):
            await lane.run(os.getpid)
        with pytest.raises(TooSlowError):
            await slow
        with pytest.raises(QueueFullError):  # it waited as long as it may
            await waiting
        assert await gone(first)
        lane.close()

    asyncio.run(run())


def test_a_lane_goes_on_after_a_process_ended_or_a_client_went_away():
    async def run():
        lane = Lane(1, 1, 60.0)
        first = await lane.run(os.getpid)
        assert first == await lane.run(os.getpid)
        with pytest.raises(ProcessEndedError):
            await lane.run(os._exit, 1)
        second = await lane.run(os.getpid)
        assert second != first
        left = asyncio.create_task(lane.run(time.sleep, 60))
        await asyncio.sleep(0.1)
        left.cancel()
        assert await lane.run(os.getpid) != second
        assert await gone(second)
        lane.close()

    asyncio.run(run())


def test_a_full_queue_says_when_to_ask_again(environment):  # noqa: ARG001
    app = make_app(Settings(1, 1, LIMITS))

    async def full(*_):
        raise QueueFullError

    app.state.service.lanes["predictions"].run = full
    response = TestClient(app).post("/predict", json=LLAMA)
    app.state.service.close()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert "retry in 1 s" in response.json()["detail"]


def test_an_error_of_its_own_is_a_problem_too(environment):  # noqa: ARG001
    app = make_app(Settings(1, 1, LIMITS))

    async def failing(*_):
        raise ZeroDivisionError

    app.state.service.lanes["predictions"].run = failing
    response = TestClient(app, raise_server_exceptions=False).post("/predict", json=LLAMA)
    app.state.service.close()
    assert response.status_code == response.json()["status"] == 500


def test_what_to_install_where_the_packages_are_missing():
    code = "import sys; sys.modules['fastapi'] = None; import pinn; pinn.serve(port=0)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "needs the package fastapi: run 'pip install fastapi" in done.stderr


def test_an_address_that_is_taken_or_unknown():
    with pytest.raises(pinn.PinnError, match=r"host no\.such\.host\.invalid port=8000 \("):
        pinn.serve(host="no.such.host.invalid")
    with pytest.raises(pinn.PinnError, match=r"^port must be in"):
        pinn.serve(port=70_000)


@pytest.fixture
def server(environment):  # noqa: ARG001
    """Start a server of its own on a free port: its URL and process."""
    (_, *words), shown = command_on("serve.md", "pinn serve")
    words[words.index("--port") + 1] = "0"
    command = [sys.executable, "-m", "pinn.cli.main", *words, "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert not missing(shown, line), f"{line}{process.stderr.read()}"
        yield re.search(r"http://\S+", line)[0], process
    finally:
        process.kill()
        process.wait()


def sent(url, body=None, timeout=300):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return response.read()


def resident_bytes(pid):
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_real_server_answers_during_a_plan_which_ends_with_its_client(server):
    url, process = server
    assert json.loads(sent(f"{url}/health"))["status"] == "ok"
    long = PLAN | {"input_len": 4000, "output_len": 1000, "num_prompts": 20_000, "rate": 40}
    planning = threading.Thread(target=give_up, args=(f"{url}/plan", long, 5.0))
    planning.start()
    while not json.loads(sent(f"{url}/health"))["simulations"]["running"]:
        time.sleep(0.05)
    begin = time.monotonic()
    first = sent(f"{url}/predict", LLAMA)
    for _ in range(200):
        assert sent(f"{url}/predict", LLAMA) == first
    before = resident_bytes(process.pid)
    for _ in range(300):
        sent(f"{url}/predict", LLAMA)
        sent(f"{url}/health", timeout=5)
    assert resident_bytes(process.pid) - before < 10 * 2**20
    assert json.loads(first)["model"]
    planning.join()
    while json.loads(sent(f"{url}/health"))["simulations"]["running"]:
        assert time.monotonic() - begin < 120
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert re.search(r"\d{3,} requests answered", out)
    assert "Traceback" not in err


def give_up(url, body, after_s):
    """Send a request, and go away before its answer comes."""
    with pytest.raises(TimeoutError):
        sent(url, body, timeout=after_s)
