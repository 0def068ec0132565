"""Records schedules of SGLang's own scheduler, which test_sglang_parity.py compares with.

    pip download sglang==0.5.9 --no-deps -d /tmp/wheel
    unzip -q /tmp/wheel/sglang-0.5.9*.whl -d /tmp/sglang
    python tests/simulator/record_sglang_schedules.py /tmp/sglang

Only SGLang's scheduler, its prefill adder, caches, allocator and request classes are imported;
whatever else they import is replaced by stand-ins, since no model runs and no GPU is needed. The
loops around them are ``Scheduler.event_loop_normal`` and ``event_loop_overlap`` with a simulated
GPU.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, MagicMock

import numpy as np
import torch
from recorded_schedules import sequences, step_seconds

CASES = Path(__file__).with_name("sglang_schedules.json")
_SRT = "sglang.srt"
_REAL = tuple(
    f"{_SRT}.{name}"
    for name in (
        "managers.schedule_policy", "managers.schedule_batch", "managers.scheduler",
        "managers.scheduler_recv_skipper", "managers.scheduler_output_processor_mixin",
        "mem_cache.radix_cache", "mem_cache.chunk_cache", "mem_cache.base_prefix_cache",
        "mem_cache.allocator", "mem_cache.common", "mem_cache.evict_policy",
        "mem_cache.cache_init_params", "mem_cache.utils", "environ", "sampling.sampling_params",
        "model_executor.forward_batch_info", "managers.overlap_utils",
    )
)  # fmt: skip
_PACKAGES = (
    "sglang", _SRT,
    *(f"{_SRT}.{p}" for p in ("managers", "mem_cache", "sampling", "model_executor")),
)  # fmt: skip
_ABSENT = (
    "transformers", "zmq", "orjson", "setproctitle", "psutil", "pybase64", "fastapi", "uvloop",
    "triton", "prometheus_client", "dill", "IPython", "torchvision", "PIL", "sgl_kernel",
    "requests", "aiohttp",
)  # fmt: skip


def random_case(seed: int) -> dict[str, Any]:
    """A workload and an engine; either prompts share beginnings or memory is short."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(10, 30))
    caching = bool(rng.random() < 0.5)
    crowded = bool(rng.random() < 0.5)
    shares = caching and not crowded
    gap = float(rng.choice([3e-4, 1e-3, 5e-3]))
    return {
        "prompts": rng.integers(1, 40, n).tolist(),
        "outputs": rng.integers(1, 24, n).tolist(),
        "offsets": np.cumsum(rng.exponential(gap, n)).tolist(),
        "donors": [int(rng.integers(-1, i)) if shares else -1 for i in range(n)],
        "shared": rng.integers(0, 60, n).tolist(),
        "serving": {
            "max_num_batched_tokens": int(rng.choice([4, 16, 64])),
            "max_prefill_tokens": int(rng.choice([24, 16384])),
            "max_num_seqs": int(rng.choice([1, 4, 8])),
            "enable_prefix_caching": caching,
            "scheduler_recv_interval": int(rng.choice([1, 1, 3, 8])),
            "block_size": 1,
            "max_model_len": 64,
        },
        "engine": {
            "async_scheduling": bool(rng.random() < 0.6),
            "num_gpu_blocks_override": int(rng.choice([80, 120])) if crowded else 4000,
        },
    }


class _Members(type):
    """Members of an enumeration that is not there."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock()
        setattr(cls, name, value)
        return value


class _Anything(metaclass=_Members):
    """A class that nothing is asked of but to be one, and to decorate."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, decorated: Any = None, *_: Any, **__: Any) -> Any:
        return decorated


class _StandIn(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        is_class = name[0].isupper() and not name.isupper()
        value = _Members(name, (_Anything,), {}) if is_class else _function()
        setattr(self, name, value)
        return value


def _function() -> MagicMock:
    """A function that is not there; as a decorator, and what one makes, it changes nothing."""

    def decorated(*given: Any, **_: Any) -> Any:
        return given[0] if len(given) == 1 and isfunction(given[0]) else DEFAULT

    return MagicMock(side_effect=decorated, return_value=MagicMock(side_effect=decorated))


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the real modules of SGLang from a folder, and stand-ins for all others."""

    def __init__(
        self, source: Path, real: tuple[str, ...] = _REAL, packages: tuple[str, ...] = _PACKAGES
    ) -> None:
        self.source, self.real, self.packages = source, real, packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        top = name.partition(".")[0]
        if (top == "sglang" and name not in self.real) or top in _ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _StandIn(spec.name)
        if spec.name in self.packages:
            module.__path__ = [str(self.source / spec.name.replace(".", "/"))]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class Sampling:
    """``SamplingBatchInfo``, which no schedule depends on."""

    penalizer_orchestrator = SimpleNamespace(is_required=False)

    def filter_batch(self, *_: Any) -> None:
        """Nothing to filter."""

    def merge_batch(self, _: Any) -> None:
        """Nothing to merge."""


class Slots:
    """``ReqToTokenPool``: where each request's tokens lie."""

    def __init__(self, size: int, longest: int) -> None:
        self.size, self.device = size, "cpu"
        self.req_to_token = torch.zeros((size, longest), dtype=torch.int32)
        self.free_slots = list(range(size))

    def write(self, indices: Any, values: Any) -> None:
        self.req_to_token[indices] = values

    def available_size(self) -> int:
        return len(self.free_slots)

    def alloc(self, requests: list[Any]) -> list[int]:
        for holder in map(self.holder, requests):
            if holder.req_pool_idx is None:
                holder.req_pool_idx = self.free_slots.pop(0)
        return [self.holder(request).req_pool_idx for request in requests]

    def free(self, request: Any) -> None:
        holder = self.holder(request)
        self.free_slots.append(holder.req_pool_idx)
        holder.req_pool_idx = None

    @staticmethod
    def holder(request: Any) -> Any:
        """Allocator that knows a request's slot."""
        return request


def _import_sglang(source: Path) -> SimpleNamespace:
    sys.meta_path.insert(0, StandIns(source))
    schedule_batch, schedule_policy, scheduler, allocator, parameters, chunk_cache, common = (
        importlib.import_module(f"{_SRT}.{name}")
        for name in (
            "managers.schedule_batch", "managers.schedule_policy", "managers.scheduler",
            "mem_cache.allocator", "mem_cache.cache_init_params", "mem_cache.chunk_cache",
            "mem_cache.common",
        )
    )  # fmt: skip
    radix_cache = importlib.import_module(f"{_SRT}.mem_cache.radix_cache")
    sampling_params = importlib.import_module(f"{_SRT}.sampling.sampling_params")
    arguments = MagicMock(page_size=1, speculative_algorithm=None)
    arguments.enable_mamba_extra_buffer = lambda: False
    for module in (schedule_batch, schedule_policy, scheduler, common):
        module.get_global_server_args = lambda: arguments
    schedule_batch.Req.init_diffusion_llm = lambda *_: None
    schedule_batch.Req.is_dllm = schedule_batch.ScheduleBatch.is_dllm = lambda _: False
    schedule_policy.is_nsa_prefill_cp_in_seq_split = lambda: False
    common.support_triton = lambda _: False
    schedule_batch.SamplingBatchInfo = SimpleNamespace(from_schedule_batch=lambda *_: Sampling())
    for module in (schedule_batch, scheduler, importlib.import_module(_REAL[4])):
        for name in ("trace_slice", "trace_slice_end", "trace_slice_start", "trace_event_batch"):
            setattr(module, name, lambda *_, **__: None)
    return SimpleNamespace(
        arguments=arguments, batch=schedule_batch, policy=schedule_policy, scheduler=scheduler,
        allocator=allocator, parameters=parameters, chunks=chunk_cache, radix=radix_cache,
        sampling=sampling_params,
    )  # fmt: skip


def _scheduler(sglang: SimpleNamespace, case: dict[str, Any]) -> Any:
    """A ``Scheduler`` without a worker."""
    serving, engine = case["serving"], case["engine"]
    tokens = engine["num_gpu_blocks_override"] - 1
    pool = sglang.allocator.TokenToKVPoolAllocator(tokens, torch.float16, "cpu", MagicMock(), False)
    slots = Slots(2 * serving["max_num_seqs"] + 2, 128)
    parameters = sglang.parameters.CacheInitParams(
        disable=not serving["enable_prefix_caching"], req_to_token_pool=slots,
        token_to_kv_pool_allocator=pool, page_size=1,
    )  # fmt: skip
    kind = sglang.radix.RadixCache if serving["enable_prefix_caching"] else sglang.chunks.ChunkCache
    found = sglang.scheduler.Scheduler.__new__(sglang.scheduler.Scheduler)
    none = SimpleNamespace(is_none=lambda: True, is_eagle=lambda: False)
    sglang.arguments.pp_max_micro_batch_size = serving["max_num_seqs"]
    values = dict(  # noqa: C408
        tree_cache=kind(parameters), req_to_token_pool=slots, token_to_kv_pool_allocator=pool,
        waiting_queue=[], running_batch=sglang.batch.ScheduleBatch(reqs=[], batch_is_full=False),
        last_batch=None, chunked_req=None, dllm_config=None, require_mlp_sync=False,
        prefill_delayer=None, try_preemption=False, enable_hierarchical_cache=False,
        enable_priority_scheduling=False, schedule_low_priority_values_first=False,
        schedule_policy="fcfs", pp_size=1, page_size=1, is_mixed_chunk=False, enable_lora=False,
        enable_hicache_storage=False, enable_dynamic_chunking=False, enable_metrics=False,
        truncation_align_size=None, priority_scheduling_preemption_threshold=0,
        chunked_prefill_size=serving["max_num_batched_tokens"],
        max_prefill_tokens=serving["max_prefill_tokens"], spec_algorithm=none,
        enable_overlap=engine["async_scheduling"], is_generation=True, forward_ct=0,
        current_scheduler_metrics_enabled=False, forward_ct_decode=0,
        num_generated_tokens=0, max_running_requests=serving["max_num_seqs"],
        model_config=MagicMock(is_matryoshka=False, is_encoder_decoder=False, vocab_size=2**31),
        server_args=SimpleNamespace(
            schedule_conservativeness=1.0, enable_prefill_delayer=False, prefill_max_requests=None,
            speculative_algorithm=None, disaggregation_mode="null", enable_dp_attention=False,
            disaggregation_decode_enable_offload_kvcache=False,
            scheduler_recv_interval=serving["scheduler_recv_interval"],
        ),
        disaggregation_mode=sglang.scheduler.DisaggregationMode.NULL,
        grammar_manager=SimpleNamespace(has_waiting_grammars=lambda: False),
    )  # fmt: skip
    for name, value in values.items():
        setattr(found, name, value)
    for name in (
        "_abort_on_waiting_timeout", "_abort_on_running_timeout", "maybe_collect_routed_experts",
        "maybe_collect_customized_info", "stream_output", "_mamba_prefix_cache_update",
        "log_prefill_stats", "log_decode_stats", "report_prefill_stats", "report_decode_stats",
        "_prefetch_kvcache",
    ):  # fmt: skip
        setattr(found, name, MagicMock())
    found.maybe_prepare_mlp_sync_batch = lambda batch, **_: batch
    found._set_or_validate_priority = lambda _: True
    found._abort_on_queued_limit = lambda _: False
    found.init_schedule_policy()
    return found


class Loop:
    """``event_loop_normal`` and ``event_loop_overlap`` around a scheduler, with a simulated GPU.

    Releases differ in how a batch is asked for, a request made and a result handed out.
    """

    def __init__(self, sglang: Any, case: dict[str, Any], scheduler: Any, skipper: Any) -> None:
        self.sglang, self.case, self.scheduler, self.skipper = sglang, case, scheduler, skipper
        self.sequences = sequences(case)
        self.now = self.gpu_free = 0.0
        self.sent = 0
        self.queue: list[tuple[float, Any]] = []
        self.batches: list[list[list[int]]] = []
        self.starts: list[float] = []
        self.finish: dict[int, float] = {}

    def run(self) -> None:
        scheduler, ahead = self.scheduler, self.case["engine"]["async_scheduling"]
        while True:
            self._receive()
            batch = self.next_batch()
            if batch:
                self._launch(batch)
                if not ahead:
                    self.process()
            if ahead and scheduler.last_batch:
                self.process()
            elif batch is None and not self._sleep():
                return
            scheduler.last_batch = batch

    def _sleep(self) -> bool:
        """An idle server spins until something comes; whether there is anything to come."""
        if self.scheduler.waiting_queue:
            return True
        self.rest()
        if self.sent == len(self.sequences):
            return False
        self.now = max(self.now, self.case["offsets"][self.sent])
        if self.skipper is not None:
            self.skipper._counter = self.skipper._threshold
        return True

    def _receive(self) -> None:
        if self.skipper is not None and not self.looks():
            return
        while self.sent < len(self.sequences) and self.case["offsets"][self.sent] <= self.now:
            r = self.sent
            self.sent += 1
            prompt = self.sequences[r][: self.case["prompts"][r]]
            self.scheduler._add_request_to_queue(self.request(r, prompt, self._sampling(r)))

    def _sampling(self, r: int) -> Any:
        found = self.parameters(max_new_tokens=self.case["outputs"][r], ignore_eos=True)
        found.normalize(None)
        return found

    def _launch(self, batch: Any) -> None:
        if batch.forward_mode.is_extend():
            rows = [self.prompt_row(request) for request in batch.reqs]
        else:
            rows = [[1, length - 1] for length in batch.seq_lens_cpu.tolist()]
        duration = step_seconds(sum(new for new, _ in rows), sum(cached for _, cached in rows))
        start = max(self.now, self.gpu_free)
        self.gpu_free = start + duration
        self.starts.append(start)
        self.batches.append(sorted(rows))
        batch.output_ids = torch.zeros(len(rows), dtype=torch.int64)
        self.queue.append((self.gpu_free, self.kept(batch)))

    def token(self, request: Any) -> int:
        """The next that a request generates."""
        r, place = int(request.rid), len(request.origin_input_ids) + len(request.output_ids)
        return self.sequences[r][min(place, len(self.sequences[r]) - 1)]


class _Server(Loop):
    """The loop of 0.5.9, which hands out results by the scheduler's own methods."""

    def __init__(self, sglang: SimpleNamespace, case: dict[str, Any]) -> None:
        scheduler = _scheduler(sglang, case)
        maybe_create = sglang.scheduler.SchedulerRecvSkipper.maybe_create
        super().__init__(sglang, case, scheduler, maybe_create(scheduler.server_args))
        self.parameters = sglang.sampling.SamplingParams

    def next_batch(self) -> Any:
        return self.scheduler.get_next_batch_to_run()

    def rest(self) -> None:
        self.scheduler.new_token_ratio = self.scheduler.init_new_token_ratio

    def looks(self) -> bool:
        last = self.scheduler.last_batch
        return self.skipper.handle(last.forward_mode if last else None)

    def request(self, r: int, prompt: list[int], sampling: Any) -> Any:
        found = self.sglang.batch.Req(str(r), "", prompt, sampling, vocab_size=2**31)
        found.time_stats = SimpleNamespace(forward_entry_time=1, prefill_finished_ts=1.0)
        return found

    def prompt_row(self, request: Any) -> list[int]:
        return [request.extend_input_len, len(request.prefix_indices)]

    def kept(self, batch: Any) -> Any:
        batch.sampling_info = Sampling()
        found = batch.copy()
        found.reqs = list(batch.reqs)
        return found

    def process(self) -> None:
        end, batch = self.queue.pop(0)
        self.now = max(self.now, end)
        tokens = [self.token(request) for request in batch.reqs]
        before = {q.rid for q in batch.reqs if q.finished()}
        result = SimpleNamespace(
            next_token_ids=torch.tensor(tokens), copy_done=None, logits_output=None,
            extend_input_len_per_req=None, extend_logprob_start_len_per_req=None,
            can_run_cuda_graph=True,
        )  # fmt: skip
        if batch.forward_mode.is_extend():
            self.scheduler.process_batch_result_prefill(batch, result)
        else:
            self.scheduler.process_batch_result_decode(batch, result)
        for request in batch.reqs:
            if request.finished() and request.rid not in before:
                self.finish[int(request.rid)] = self.now


def record(path: Path, server: Callable[[dict[str, Any]], Loop]) -> None:
    """Write what a release's scheduler does with the cases."""
    cases = []
    for seed in range(20):
        case = random_case(seed)
        ran = server(case)
        ran.run()
        finish = [ran.finish[r] for r in range(len(case["prompts"]))]
        cases.append(case | {"batches": ran.batches, "starts": ran.starts, "finish": finish})
    path.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    print(f"{len(cases)} cases, {sum(len(case['batches']) for case in cases)} batches")


def main() -> None:
    """Record the cases."""
    sglang = _import_sglang(Path(sys.argv[1]))
    record(CASES, lambda case: _Server(sglang, case))


if __name__ == "__main__":
    main()
