"""Targets to fuzz: a strategy for inputs, and the law that each input must obey."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from browser import CHROMIUM
from fuzz.benchmark_targets import (
    STEPS,
    benchmark_files,
    check_benchmark_file,
    check_folder,
    check_steps,
    folders,
)
from fuzz.command_targets import check_command, commands
from fuzz.hostile_values import VALUES, changed, changed_bytes, files, written
from fuzz.load_targets import check_line, check_load, lines, loads
from fuzz.page_targets import check_page, check_settings, pages, settings
from fuzz.target import Fuzzed, Target
from fuzz.text_targets import (
    check_grid,
    check_limits_and_prices,
    check_name,
    grids,
    limits_and_prices,
    names,
)
from hypothesis import strategies as st

from pinn.errors import PinnError

#: Columns and kinds of workload files; small, so that simulating one takes milliseconds.
PLAIN = {"prompt_tokens": 64, "output_tokens": 4, "stages": [{"rate": 8, "duration": 2}]}
CLOSED = {"prompt_tokens": 64, "output_tokens": 4, "concurrency": 4, "requests": 12}
SHARED = PLAIN | {"groups": 2, "prompts_per_group": 2, "shared_tokens": 16, "seed": 1}
TURNS = CLOSED | {
    "turns": 3,
    "turn_tokens": 8,
    "think_time_s": 0.5,
    "tool_calls": 1,
    "tool_tokens": 6,
    "tool_delay_s": 0.1,
}
MOONCAKE = [
    {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]},
    {"timestamp": 250, "input_length": 1100, "output_length": 2, "hash_ids": [1, 2, 3]},
]
TEXTS = [
    {"id": "a", "conversations": [
        {"from": "human", "value": "What is a prefix cache?"}, {"from": "gpt", "value": "A store."},
        {"from": "human", "value": "Of what?"}, {"from": "gpt", "value": "Keys and values."}]},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
]  # fmt: skip
INFERENCE_PERF = {
    "load": {"type": "poisson", "interval": 1.0, "stages": [{"rate": 4, "duration": 3}]},
    "data": {"type": "shared_prefix", "shared_prefix": {"num_groups": 2, "output_len": 3}},
}
BLIS = {
    "aggregate_rate": 10.0, "num_requests": 12, "seed": 1,
    "clients": [
        {
            "id": "a", "rate_fraction": 1.0, "arrival": {"process": "gamma", "cv": 2.0},
            "input_distribution": {"type": "gaussian", "params": {"mean": 90, "std_dev": 9}},
            "output_distribution": {"type": "uniform", "params": {"min": 1, "max": 5}},
            "prefix_group": "g", "prefix_length": 32,
        }
    ],
}  # fmt: skip
TRACE = (
    b"arrival_s,prompt_tokens,output_tokens,prefix_group,prefix_tokens,timeout_s\n"
    b"0,100,5,a,16,\n0.5,64,3,a,16,30\n1.25,80,4,,0,0\n"
)
AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,4\n"
    b"2023-11-16 18:15:46.9951690,96,9\n2023-11-16 18:15:47.2224670,79,2\n"
)
ROUNDS = (
    b"Session ID,arrival_ms,prompt_len,completion_tokens,think_time_s\n"
    b"a,5,90,4,\nb,15,20,3,\na,25,120,2,\n"
)
LIST = [
    {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100", "tensor_parallel_size": 2},
    {"model": "mistralai/Mixtral-8x7B-v0.1", "gpu": "H200", "enable_expert_parallel": True,
     "max_num_seqs": 64, "precision": "fp8", "gpu_memory_utilization": 0.8},
]  # fmt: skip
GRID = {"model": "meta-llama/Llama-3.1-8B", "gpu": ["H100", "L40S"], "tensor_parallel_size": [1, 2]}
FOREIGN_GPUS = [
    {"X1": {"memory_bandwidth_gb_s": 2000, "compute_tflops_fp16": 300, "memory_gb": 80,
            "sm_count": 100}},
    {"H100": {"TFlopsPeak": 989.5, "BwPeakTBs": 3.35, "MemoryGiB": 80, "TFlopsFP8": 1979}},
]  # fmt: skip
RUNS_HEADER = (
    "run,stage,model,gpu,tensor_parallel_size,precision,max_num_batched_tokens,workload,rate_per_s,"
    "prompt_tokens,output_tokens,ttft_mean_ms,ttft_p90_ms,ttft_p99_ms,itl_mean_ms,"
    "itl_mean_reported_ms,e2e_mean_ms,e2e_p90_ms,e2e_p99_ms\n"
)
RUNS = (
    RUNS_HEADER + "r1,0,meta-llama/Llama-3.1-8B,H100,1,BF16,2048,roleplay,6,750,251,25,30,40,8,8,"
    "2025,2100,2300\n"
).encode()


def _predict(shared: Fuzzed, deployment: Any) -> None:
    """Prediction of an accepted deployment: finite, and not below the floor."""
    from pinn.specs.batch import parse_batch
    from pinn.surrogate.surrogate import batch_floor_seconds, batch_seconds

    batches = [parse_batch("32 decode @ 700"), parse_batch("1 prefill 512 @ 0 + 2 decode @ 9")]
    seconds = batch_seconds(
        shared.surrogate.coefficients([deployment]).beta[0], deployment, batches
    )
    floor = batch_floor_seconds(deployment, batches)
    assert np.isfinite(seconds).all()
    assert (seconds >= floor * (1 - 1e-9)).all()


def _config(shared: Fuzzed, content: bytes) -> None:
    from pinn.engines.deployment import Deployment
    from pinn.specs.catalog import load_model

    model = load_model(shared.file("config.json", content))
    assert model.name.isprintable()
    _predict(shared, Deployment(model, shared.deployment.gpu, shared.deployment.serving))


def _configs(_: Fuzzed) -> st.SearchStrategy[bytes]:
    from pinn.specs.catalog import list_models
    from pinn.specs.model_names import catalog_models

    known = [catalog_models()[name.lower()] for name in list_models()[::7]]
    return files([dict(each.documents()[0]) for each in known])


def _gpu(shared: Fuzzed, content: bytes) -> None:
    from pinn.engines.deployment import Deployment
    from pinn.specs.gpu import load_gpu

    gpu = load_gpu(shared.file("gpu.json", content))
    assert gpu.name.isprintable()
    assert gpu.source.isprintable()
    _predict(shared, Deployment(shared.deployment.model, gpu, shared.deployment.serving))


def _gpus(_: Fuzzed) -> st.SearchStrategy[bytes]:
    from pinn.common.files import data_folder

    own = [json.loads(p.read_text()) for p in sorted(data_folder("gpus").glob("*.json"))[:3]]
    return files([*own, *FOREIGN_GPUS])


def _list(shared: Fuzzed, given: tuple[str, bytes]) -> None:
    from pinn.engines.configurations import make_deployments, read_configurations

    rows = read_configurations(shared.file(f"list{given[0]}", given[1]))
    kept, deployments, reasons = make_deployments(rows, skip_invalid=True)
    assert len(kept) == len(deployments)
    assert len(kept) + len(reasons) == len(rows)
    for deployment in deployments:
        _predict(shared, deployment)


def _csv(rows: list[dict[str, Any]]) -> bytes:
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    lines = [",".join(names), *(",".join(str(row.get(n, "")) for n in names) for row in rows)]
    return "\n".join(lines).encode(errors="surrogatepass")


def _lists(_: Fuzzed) -> st.SearchStrategy[tuple[str, bytes]]:
    trees = st.tuples(st.sampled_from([".json", ".yaml", ".yml"]), files([LIST, GRID]))
    rows = changed([LIST]).map(lambda t: t if isinstance(t, list) else [])
    plain = rows.map(lambda found: _csv([row for row in found if isinstance(row, dict)]))
    texts = st.one_of(plain, changed_bytes([_csv(LIST)]), st.binary(max_size=60))
    return st.one_of(trees, st.tuples(st.just(".csv"), texts))


def _batch(shared: Fuzzed, text: str) -> None:
    from pinn.api.prediction import network_prediction

    (found,) = network_prediction(shared.checkpoint, shared.deployment).at(text).steps
    assert found.seconds >= found.floor * (1 - 1e-9)
    assert np.isfinite(found.seconds)


def _batches(_: Fuzzed) -> st.SearchStrategy[str]:
    number = st.one_of(
        st.integers(0, 10**4).map(str),
        st.sampled_from(["-1", "1e9", "10000000", "9" * 10, "9" * 30, "9" * 5000, "", "1.5"]),
    )
    decode = st.builds("{} decode @ {}".format, number, number)
    prefill = st.builds("{} prefill {} @ {}".format, number, number, number)
    joined = st.lists(st.one_of(decode, prefill), max_size=4).map(" + ".join)
    usual = st.builds("{} decode @ {}".format, st.integers(1, 512), st.integers(0, 8192))
    return st.one_of(usual, joined, st.text(max_size=30))


def _workload(shared: Fuzzed, given: tuple[str, bytes]) -> None:
    from pinn.simulator.linear_latency import LinearLatency
    from pinn.simulator.simulate import simulate
    from pinn.simulator.statistics import run_statistics
    from pinn.simulator.workloads.load import load_workload

    workload = load_workload(shared.file(f"load{given[0]}", given[1]))
    assert workload.name.isprintable()
    if len(workload) > 300 or workload.output_tokens.sum() > 20_000:
        return
    found = shared.surrogate.coefficients([shared.deployment])
    latency = LinearLatency(shared.deployment, found.beta[0], found.alpha[0])
    statistics = run_statistics(simulate(shared.deployment, workload, latency))
    ended = ("completed_requests", "timed_out_requests", "rejected_requests")
    assert sum(statistics[name] for name in ended) == statistics["injected_requests"]


def _workloads(_: Fuzzed) -> st.SearchStrategy[tuple[str, bytes]]:
    trees = files([PLAIN, CLOSED, SHARED, TURNS, INFERENCE_PERF, BLIS])
    lists, tables = files([MOONCAKE, TEXTS]), st.sampled_from([TRACE, AZURE, ROUNDS])
    return st.one_of(
        st.tuples(st.sampled_from([".yaml", ".json"]), trees),
        st.tuples(st.sampled_from([".json", ".jsonl"]), lists),
        st.tuples(st.just(".csv"), tables.flatmap(_cells)),
    )


@st.composite
def _cells(draw: st.DrawFn, table: bytes) -> bytes:
    """A CSV table with cells replaced, or with its bytes changed."""
    if draw(st.booleans()):
        return draw(changed_bytes([table]))
    rows = [line.split(",") for line in table.decode().splitlines()]
    for _ in range(draw(st.integers(0, 3))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        row[draw(st.integers(0, len(row) - 1))] = str(draw(VALUES))
    return "\n".join(map(",".join, rows)).encode(errors="surrogatepass")


def _checkpoint(shared: Fuzzed, content: bytes) -> None:
    from pinn.surrogate.surrogate import Surrogate

    surrogate = Surrogate.load(shared.file("net.safetensors", content))
    coefficients = surrogate.coefficients([shared.deployment])
    assert np.isfinite(coefficients.beta).all()


def _checkpoints(shared: Fuzzed) -> st.SearchStrategy[bytes]:
    whole = shared.checkpoint.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    head, tensors = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    inner = json.loads(head["__metadata__"]["pinn"])

    def joined(header: Any) -> bytes:
        text = written(header)
        return len(text).to_bytes(8, "little") + text + tensors

    return st.one_of(
        changed_bytes([whole]),
        changed([head]).map(joined),
        changed([inner]).map(
            lambda tree: joined(head | {"__metadata__": {"pinn": json.dumps(tree)}})
        ),
    )


def _coefficient_set(shared: Fuzzed, content: bytes) -> None:
    from pinn.api.prediction import file_prediction
    from pinn.engines.configurations import canonical, make_deployment
    from pinn.surrogate.coefficient_set import read_coefficient_set

    found = read_coefficient_set(shared.file("set.json", content))
    deployment = make_deployment(canonical(found.configuration()))
    prediction = file_prediction(found, deployment).at("3 decode @ 9")
    assert prediction.to_json()["batches"]
    assert "\x1b" not in str(prediction)


def _coefficient_sets(shared: Fuzzed) -> st.SearchStrategy[bytes]:
    from pinn.surrogate.coefficient_set import CoefficientSet, deployment_facts, set_to_json

    found = shared.surrogate.coefficients([shared.deployment])
    facts = deployment_facts(shared.deployment)
    fitted = {"sources": [{"path": "run1", "sha256": "0"}]}
    tree = set_to_json(CoefficientSet(facts, found, calibration=fitted, base=found))
    return files([tree])


def _trace_lines(_: Fuzzed, lines: list[bytes]) -> None:
    from pinn.measurements.readers.parser import ChunkParser

    chunk = ChunkParser().parse(lines)
    read, refused = chunk.counts.read, chunk.counts.refused
    rows = {name: sum(b.num_rows for b in found) for name, found in chunk.tables.items()}
    events = sum(count for name, count in rows.items() if name != "spans")
    assert read["lines"] == len(lines)
    assert read["events"] == events + refused["events"].total()
    # Spans of steps are accepted without a row of their own.
    assert read["spans"] >= rows.get("spans", 0) + refused["spans"].total()
    if refused["lines"].total() == len(lines):
        raise PinnError("no line was accepted")


def _traced(_: Fuzzed) -> st.SearchStrategy[list[bytes]]:
    from trace_runs import engine_run, lines_of

    lines = [json.loads(line) for line in lines_of(engine_run(3), step_sampling=0.2)[:4]]
    return st.lists(files(lines).map(lambda data: data.replace(b"\n", b" ")), max_size=3)


def _runs(shared: Fuzzed, content: bytes) -> None:
    from pinn.measurements.runs.serving_runs import read_serving_runs

    rows, report = read_serving_runs(shared.file("runs.csv", content))
    assert len(rows) == report.accepted
    assert report.accepted + sum(report.refused.values()) == report.read


def _graph(shared: Fuzzed, given: tuple[np.ndarray, np.ndarray]) -> None:
    """The exported graph gives what the network gives, for numbers that no deployment has too."""
    free, rates = (values[None] for values in given)
    feeds = {"descriptors": free, "rates": rates}
    beta, alpha = shared.graph.run(["beta", "alpha"], feeds)
    with np.errstate(all="ignore"):
        wanted = shared.surrogate.checkpoint.network.coefficients(free, rates)
    np.testing.assert_allclose(beta, wanted[0], rtol=1e-5)
    np.testing.assert_allclose(alpha, wanted[1], rtol=1e-5)


def _graphs(_: Fuzzed) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    from pinn.surrogate.featurizer import DESCRIPTORS, RATES

    def numbers(seed: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(seed)
        found = random.uniform(-1e9, 1e9, len(DESCRIPTORS) + len(RATES))
        odd = random.random(len(found)) < random.random() / 2
        found[odd] = random.choice([0.0, 1.0, 1e300, -1e300], odd.sum())
        return found[: len(DESCRIPTORS)], found[len(DESCRIPTORS) :]

    return st.integers(0, 2**62).map(numbers)


TARGETS: dict[str, Target] = {
    "configs": Target(_configs, _config),
    "gpus": Target(_gpus, _gpu),
    "lists": Target(_lists, _list),
    "batches": Target(_batches, _batch),
    "workloads": Target(_workloads, _workload),
    "checkpoints": Target(_checkpoints, _checkpoint),
    "coefficient sets": Target(_coefficient_sets, _coefficient_set),
    "serving runs": Target(lambda _: _cells(RUNS), _runs),
    "traces": Target(_traced, _trace_lines),
    "ONNX": Target(_graphs, _graph, refuses=False),
    "benchmark files": Target(benchmark_files, check_benchmark_file),
    "folders of benchmarks": Target(folders, check_folder),
    "tables of steps": Target(lambda _: _cells(STEPS), check_steps),
    "names": Target(names, check_name),
    "grids": Target(grids, check_grid),
    "limits and prices": Target(limits_and_prices, check_limits_and_prices),
    "commands": Target(commands, check_command),
    "loads in flags": Target(loads, check_load),
    "launch commands": Target(lines, check_line),
    "pages": Target(pages, check_page),
} | ({"settings of a page": Target(settings, check_settings)} if CHROMIUM else {})
