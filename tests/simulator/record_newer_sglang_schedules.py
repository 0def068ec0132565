"""Records schedules of the scheduler of SGLang 0.5.23, as record_sglang_schedules.py of 0.5.9's.

    pip download sglang==0.5.23 --no-deps -d /tmp/wheel
    unzip -q /tmp/wheel/sglang-0.5.23*.whl -d /tmp/sglang
    python tests/simulator/record_newer_sglang_schedules.py /tmp/sglang

Its scheduler, prefill adder, budget, radix cache (``RadixCache``; the server's unified one keys
prefixes alike), allocator and request classes are imported. What writes tokens' places for a GPU
(``alloc_for_extend``, ``alloc_for_decode``) and hands out results stands here in short.
"""

from __future__ import annotations

import importlib
import sys
from array import array
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import record_sglang_schedules as older
import torch

CASES = Path(__file__).with_name("newer_sglang_schedules.json")
_SRT = "sglang.srt"
_REAL = tuple(
    f"{_SRT}.{name}"
    for name in (
        "managers.schedule_policy", "managers.schedule_batch", "managers.scheduler",
        "managers.scheduler_components.recv_skipper",
        "managers.scheduler_components.new_token_ratio_tracker", "mem_cache.prefill_budget",
        "mem_cache.radix_cache", "mem_cache.base_prefix_cache", "mem_cache.allocator",
        "mem_cache.allocator.base", "mem_cache.allocator.token", "mem_cache.common",
        "mem_cache.allocation", "mem_cache.allocation_sizing", "mem_cache.evict_policy",
        "mem_cache.cache_init_params", "mem_cache.utils", "mem_cache.events", "environ",
        "sampling.sampling_params", "model_executor.forward_batch_info",
        "utils.token_sequence_matcher", "beam_search.batch_tail", "beam_search.fork",
    )
)  # fmt: skip
_PACKAGES = (
    "sglang", _SRT,
    *(f"{_SRT}.{p}" for p in ("managers", "managers.scheduler_components", "mem_cache",
                              "mem_cache.allocator", "sampling", "model_executor", "utils",
                              "beam_search")),
)  # fmt: skip


class _Quiet:
    """Settings that are all off, and services that do nothing."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _OFF

    def __call__(self, *_: Any, **__: Any) -> _Quiet:
        return _OFF

    def __bool__(self) -> bool:
        return False

    def __gt__(self, _: Any) -> bool:
        return False

    __lt__ = __ge__ = __le__ = __gt__

    def __iter__(self) -> Any:
        return iter(())


_OFF = _Quiet()
#: What ``get_schedule()`` and others of its kind answer.
_SETTINGS: dict[str, _Quiet] = {}


class _Slots(older.Slots):
    """``ReqToTokenPool``, whose requests keep their slot with their cache."""

    mamba_allocator = None

    @staticmethod
    def holder(request: Any) -> Any:
        return request.kv


def _import_sglang(source: Path) -> dict[str, Any]:
    sys.meta_path.insert(0, older.StandIns(source, _REAL, _PACKAGES))
    found = {name.partition("srt.")[2]: importlib.import_module(name) for name in _REAL}
    batch, allocation = found["managers.schedule_batch"], found["mem_cache.allocation"]

    def alloc_for_extend(new: Any) -> Any:
        rows = new.req_to_token_pool.alloc(new.reqs)
        places = allocation.alloc_token_slots(new.tree_cache, new.extend_num_tokens).int()
        at, table = 0, new.req_to_token_pool.req_to_token
        for request, row, length in zip(new.reqs, rows, new.seq_lens_cpu.tolist(), strict=True):
            prefix = request.prefix_len
            table[row, :prefix] = allocation._prefix_kv_indices(new, request)[:prefix].int()
            table[row, prefix:length] = places[at : at + length - prefix]
            at += length - prefix
            request.kv.kv_allocated_len = request.kv.kv_committed_len = length
        return places, torch.tensor(rows), torch.tensor(rows)

    def alloc_for_decode(running: Any, token_per_req: int) -> Any:
        places = allocation.alloc_token_slots(running.tree_cache, len(running.reqs)).int()
        for request, place in zip(running.reqs, places, strict=True):
            kv = request.kv
            running.req_to_token_pool.req_to_token[kv.req_pool_idx, kv.kv_allocated_len] = place
            kv.kv_allocated_len += token_per_req
            kv.kv_committed_len += token_per_req
        return places

    instead = {
        "alloc_for_extend": alloc_for_extend, "alloc_for_decode": alloc_for_decode,
        "SchedulerReqTimeStats": MagicMock, "is_pin_memory_available": lambda *_: False,
        "SamplingBatchInfo": SimpleNamespace(from_schedule_batch=lambda *_: older.Sampling()),
        "page_interleave_shard_size": lambda *_: 1, "mamba_prefill_chunk_grid": lambda *_: 1,
        "resets_swa_window": lambda *_: False, "support_triton": lambda *_: False,
    }  # fmt: skip
    for module in found.values():
        for name, value in tuple(vars(module).items()):
            if isinstance(value, MagicMock) and name.startswith("get_"):
                setattr(module, name, lambda *_, name=name: _SETTINGS.get(name, _OFF))
            elif isinstance(value, MagicMock) and name.startswith("is_"):
                setattr(module, name, lambda *_, **__: False)
            elif isinstance(value, MagicMock) and name.lower().startswith("_is_"):
                setattr(module, name, False)
            if name in instead:
                setattr(module, name, instead[name])
    batch.Req.is_dllm = batch.ScheduleBatch.is_dllm = lambda _: False
    batch.Req.init_diffusion_llm = lambda *_: None
    batch.Req.dllm_config = None
    return found


def _scheduler(sglang: dict[str, Any], case: dict[str, Any]) -> Any:
    """A ``Scheduler`` without a worker."""
    serving, engine = case["serving"], case["engine"]
    seats, chunk = serving["max_num_seqs"], serving["max_num_batched_tokens"]
    schedule = _Quiet(
        schedule_conservativeness=1.0, schedule_policy="fcfs", prefill_max_requests=None,
        scheduler_recv_interval=serving["scheduler_recv_interval"], page_size=1,
        max_running_requests=seats, chunked_prefill_size=chunk,
    )  # fmt: skip
    sizes = dict.fromkeys(
        ("pp_size", "tp_size", "dp_size", "attn_dp_size", "attn_tp_size", "attn_cp_size",
         "dcp_size", "attn_dcp_size"), 1,
    )  # fmt: skip
    parallel = _Quiet(pp_max_micro_batch_size=seats, **sizes)
    _SETTINGS.update(get_schedule=schedule, get_parallel=parallel)
    pool = sglang["mem_cache.allocator.token"].TokenToKVPoolAllocator(
        engine["num_gpu_blocks_override"] - 1, torch.float16, "cpu", MagicMock(), False
    )
    slots = _Slots(2 * seats + 2, 128)
    cache = sglang["mem_cache.radix_cache"].RadixCache(
        sglang["mem_cache.cache_init_params"].CacheInitParams(
            disable=not serving["enable_prefix_caching"], req_to_token_pool=slots,
            token_to_kv_pool_allocator=pool, page_size=1,
        )
    )  # fmt: skip
    module = sglang["managers.scheduler"]
    found = module.Scheduler.__new__(module.Scheduler)
    ahead = engine["async_scheduling"]
    values = dict(  # noqa: C408
        tree_cache=cache, req_to_token_pool=slots, token_to_kv_pool_allocator=pool,
        waiting_queue=[], last_batch=None, chunked_req=None, dllm_config=None, page_size=1,
        running_batch=sglang["managers.schedule_batch"].ScheduleBatch(reqs=[], batch_is_full=False),
        chunked_prefill_size=chunk, max_prefill_tokens=serving["max_prefill_tokens"],
        max_running_requests=seats, schedule_policy="fcfs",
        priority_scheduling_preemption_threshold=0,
        spec_algorithm=_Quiet(is_none=lambda: True), is_generation=True, forward_ct=0,
        model_config=_Quiet(vocab_size=2**31), server_args=_OFF, enable_overlap=ahead,
        disaggregation_mode=module.DisaggregationMode.NULL, grammar_manager=_OFF,
        processed_tokens_counter=0, _prefill_decode_interval_remaining=0,
        prefill_decode_interval_min_bs=0, enable_skip_finishing_decode=ahead,
        result_queue=deque(), beam_coordinator=_Quiet(pending_member_rows=lambda _: 0),
        new_token_ratio_tracker=sglang[
            "managers.scheduler_components.new_token_ratio_tracker"
        ].NewTokenRatioTracker.from_config(),
        dp_attn_adapter=_Quiet(
            maybe_prepare_mlp_sync_batch=lambda batch, **_: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        ),
        ngram_embedding_manager=_Quiet(prepare_for_forward=lambda batch, **_: batch),
        tp_worker=_Quiet(model_runner=_Quiet(attn_backend=object())), metrics_reporter=_OFF,
        load_inquirer=_Quiet(_get_num_pending_tokens=lambda **_: 0),
    )  # fmt: skip
    off = (
        "require_mlp_sync", "enable_priority_preemption", "enable_hierarchical_cache",
        "enable_priority_scheduling", "schedule_low_priority_values_first", "is_mixed_chunk",
        "enable_lora", "enable_hicache_storage", "enable_lmcache", "is_hybrid_swa",
        "enable_hisparse", "enable_unified_cache_external_linker",
    )  # fmt: skip
    absent = (
        "prefill_delayer", "truncation_align_size", "min_free_slots_delayer", "lora_drainer",
        "dynamic_chunk_sizer", "decode_offload_manager", "hisparse_coordinator",
    )  # fmt: skip
    values |= dict.fromkeys(off, False) | dict.fromkeys(absent)
    for name, value in values.items():
        setattr(found, name, value)
    for name in (
        "process_pending_chunked_abort", "_process_hicache_events", "_prefetch_kvcache",
        "_arm_prefill_decode_interval",
    ):  # fmt: skip
        setattr(found, name, MagicMock())
    found._set_or_validate_priority = lambda _: True
    found._abort_on_queued_limit = lambda _: False
    found.init_schedule_policy()
    return found


class _Server(older.Loop):
    """The loop of 0.5.23, which hands out results as ``process_batch_result_*`` does."""

    def __init__(self, sglang: dict[str, Any], case: dict[str, Any]) -> None:
        scheduler = _scheduler(sglang, case)
        skipper = sglang["managers.scheduler_components.recv_skipper"].SchedulerRecvSkipper
        super().__init__(sglang, case, scheduler, skipper.maybe_create())
        self.parameters = sglang["sampling.sampling_params"].SamplingParams

    def next_batch(self) -> Any:
        scheduler = self.scheduler
        plan = scheduler.get_next_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )
        scheduler.running_batch = plan.running_batch
        return plan.batch_to_run

    def rest(self) -> None:
        self.scheduler.new_token_ratio_tracker.reset()

    def looks(self) -> bool:
        return self.skipper.handle(self.scheduler.last_batch)

    def request(self, r: int, prompt: list[int], sampling: Any) -> Any:
        kind = self.sglang["managers.schedule_batch"].Req
        return kind(str(r), "", array("q", prompt), sampling, vocab_size=2**31)

    def prompt_row(self, request: Any) -> list[int]:
        return [request.extend_len, request.prefix_len]

    def kept(self, batch: Any) -> Any:
        batch.input_ids = batch.output_ids
        found = SimpleNamespace(reqs=list(batch.reqs), prompts=batch.forward_mode.is_extend())
        # The scheduler asks whether results are still to come.
        self.scheduler.result_queue.append((found, None))
        return found

    def process(self) -> None:
        """``process_batch_result_prefill`` and ``_decode`` of requests without extras."""
        end, batch = self.queue.pop(0)
        self.scheduler.result_queue.popleft()
        self.now = max(self.now, end)
        common, cache = self.sglang["mem_cache.common"], self.scheduler.tree_cache
        for request in batch.reqs:
            if batch.prompts and request.inflight_middle_chunks > 0:
                request.inflight_middle_chunks -= 1
                continue
            if request.finished() or request.is_retracted:
                continue
            request.output_ids.append(self.token(request))
            request.update_finish_state()
            if request.finished():
                common.release_kv_cache(request, cache, checkpoint=True)
                self.finish[int(request.rid)] = self.now
            elif batch.prompts:
                common.checkpoint_kv_cache(request, cache)


def main() -> None:
    """Record the cases."""
    sglang = _import_sglang(Path(sys.argv[1]))
    older.record(CASES, lambda case: _Server(sglang, case))


if __name__ == "__main__":
    main()
