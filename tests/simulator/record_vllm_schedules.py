"""Records schedules of vLLM's own scheduler, which test_vllm_parity.py compares with.

    pip download vllm==0.15.1 --no-deps --no-binary :none: -d /tmp/wheel
    unzip -q /tmp/wheel/vllm-0.15.1*.whl -d /tmp/vllm
    python tests/simulator/record_vllm_schedules.py /tmp/vllm

Only vLLM's scheduler, KV cache manager and request classes are imported; whatever else they import
is replaced by stand-ins, since no model runs. The loop around them is ``EngineCore.step`` and
``step_with_batch_queue`` with a simulated GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import importlib.abc
import importlib.machinery
import json
import pickle
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from recorded_schedules import sequences, step_seconds

CASES = Path(__file__).with_name("vllm_schedules.json")
_REAL = ("vllm.v1.core", "vllm.v1.request", "vllm.v1.kv_cache_interface", "vllm.utils.math_utils")
_PACKAGES = ("vllm", "vllm.v1", "vllm.utils")
_ABSENT = ("transformers", "cbor2", "zmq", "prometheus_client", "cloudpickle", "xxhash", "openai")


def random_case(seed: int) -> dict[str, Any]:
    """A workload and an engine, small enough to run out of everything."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(10, 30))
    budget = int(rng.choice([4, 16, 64]))
    chunked = bool(budget < 64 or rng.random() < 0.6)
    patience = float(rng.choice([5e-3, 3e-2]))
    gap = float(rng.choice([3e-4, 1e-3, 5e-3]))
    return {
        "prompts": rng.integers(1, 40, n).tolist(),
        "outputs": rng.integers(1, 24, n).tolist(),
        "offsets": np.cumsum(rng.exponential(gap, n)).tolist(),
        "donors": [int(rng.integers(-1, i)) for i in range(n)],
        "shared": rng.integers(0, 60, n).tolist(),
        "timeouts": [patience if rng.random() < 0.1 else None for _ in range(n)],
        "serving": {
            "max_num_batched_tokens": budget,
            "max_num_seqs": int(rng.choice([s for s in (1, 4, 8) if s <= budget])),
            "enable_chunked_prefill": chunked,
            "enable_prefix_caching": bool(rng.random() < 0.7),
            "pipeline_parallel_size": int(rng.choice([1, 1, 1, 2])),
            "block_size": 4,
            "max_model_len": 64,
        },
        "engine": {
            "async_scheduling": bool(rng.random() < 0.6),
            "num_gpu_blocks_override": int(rng.choice([18, 24, 40, 400])),
            "long_prefill_token_threshold": int(rng.choice([0, 0, 3])),
        },
    }


class _StandIn(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[0].isupper() else MagicMock()
        setattr(self, name, value)
        return value


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, source: Path) -> None:
        self.source = source

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        top = name.partition(".")[0]
        real = name == "vllm.v1.engine" or any(f"{name}.".startswith(f"{r}.") for r in _REAL)
        if (top == "vllm" and not real) or top in _ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _StandIn(spec.name)
        if spec.name in _PACKAGES:
            module.__path__ = [str(self.source / spec.name.replace(".", "/"))]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def _import_vllm(source: Path) -> SimpleNamespace:
    sys.meta_path.insert(0, _StandIns(source))
    import vllm._bc_linter as linter

    linter.bc_linter_include = lambda x: x
    import vllm.v1.core.sched.async_scheduler as asynchronous
    import vllm.v1.core.sched.scheduler as synchronous
    import vllm.v1.kv_cache_interface as interface
    import vllm.v1.request as request
    from vllm.v1.core import kv_cache_utils as utils

    request.StructuredOutputRequest = SimpleNamespace(from_sampling_params=lambda _: None)
    request.ConstantList = lambda values: values
    request.length_from_prompt_token_ids_or_embeds = lambda ids, _: len(ids)
    synchronous.compute_encoder_budget = lambda **_: (0, 0)
    synchronous.envs = SimpleNamespace(VLLM_USE_V2_MODEL_RUNNER=False)
    synchronous.EncoderCacheManager = lambda **_: SimpleNamespace(
        free=lambda _: None, get_freed_mm_hashes=list, get_cached_input_ids=lambda _: []
    )
    synchronous.EventPublisherFactory = synchronous.MULTIMODAL_REGISTRY = MagicMock()
    synchronous.record_function_or_nullcontext = lambda _: contextlib.nullcontext()
    utils.init_none_hash(_hash)
    return SimpleNamespace(
        synchronous=synchronous,
        asynchronous=asynchronous,
        interface=interface,
        request=request,
        utils=utils,
    )


def _hash(value: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(value)).digest()


def _scheduler(vllm: SimpleNamespace, case: dict[str, Any]) -> Any:
    import torch

    serving, engine = case["serving"], case["engine"]
    size, blocks = serving["block_size"], engine["num_gpu_blocks_override"]
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(
            policy="fcfs",
            max_num_seqs=serving["max_num_seqs"],
            max_num_batched_tokens=serving["max_num_batched_tokens"],
            enable_chunked_prefill=serving["enable_chunked_prefill"],
            long_prefill_token_threshold=engine["long_prefill_token_threshold"],
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks=blocks,
            block_size=size,
            mamba_cache_mode="none",
            enable_prefix_caching=serving["enable_prefix_caching"],
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=serving["pipeline_parallel_size"],
            data_parallel_index=0,
        ),
        model_config=SimpleNamespace(
            max_model_len=serving["max_model_len"],
            is_encoder_decoder=False,
            enable_return_routed_experts=False,
        ),
        observability_config=SimpleNamespace(kv_cache_metrics=False, enable_mfu_metrics=False),
        lora_config=None,
        kv_events_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        speculative_config=None,
    )
    spec = vllm.interface.FullAttentionSpec(
        block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    group = vllm.interface.KVCacheGroupSpec(["layer"], spec)
    kind = (
        vllm.asynchronous.AsyncScheduler
        if engine["async_scheduling"]
        else vllm.synchronous.Scheduler
    )
    return kind(
        vllm_config=config,
        kv_cache_config=vllm.interface.KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group]
        ),
        structured_output_manager=MagicMock(should_advance=lambda _: False),
        block_size=size,
        log_stats=False,
    )


class _Server:
    """The busy loop of one engine core around vLLM's scheduler."""

    def __init__(self, vllm: SimpleNamespace, case: dict[str, Any]) -> None:
        self.vllm, self.case, self.scheduler = vllm, case, _scheduler(vllm, case)
        self.sequences = sequences(case)
        self.stages = case["serving"]["pipeline_parallel_size"]
        self.depth = self.stages if self.stages > 1 else 1 + case["engine"]["async_scheduling"]
        self.now = self.gpu_free = self.last_end = 0.0
        self.sent = 0
        self.queue: list[tuple[float, Any, list[tuple[int, int, int]], list[bool]]] = []
        self.generated = [0] * len(self.sequences)
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

    def run(self) -> None:
        while True:
            if not self.scheduler.has_requests() and not self.queue:
                if self.sent == len(self.sequences):
                    return
                self.now = max(self.now, self.case["offsets"][self.sent])
                self._abort()
            self._drain_input()
            launched = self.scheduler.has_requests() and self._launch()
            if launched and len(self.queue) < self.depth:
                continue
            if self.queue:
                self._finish_oldest()

    def _drain_input(self) -> None:
        serving, n = self.case["serving"], len(self.sequences)
        hasher = None
        if serving["enable_prefix_caching"]:
            hasher = self.vllm.utils.get_request_block_hasher(serving["block_size"], _hash)
        while self.sent < n and self.case["offsets"][self.sent] <= self.now:
            r = self.sent
            self.sent += 1
            if r in self.timed_out:
                continue
            sampling = SimpleNamespace(
                max_tokens=self.case["outputs"][r],
                min_tokens=0,
                ignore_eos=True,
                stop_token_ids=None,
                extra_args=None,
                logprobs=None,
                prompt_logprobs=None,
                skip_reading_prefix_cache=None,
            )
            prompt = self.sequences[r][: self.case["prompts"][r]]
            self.scheduler.add_request(
                self.vllm.request.Request(
                    str(r), prompt, sampling, None, None, block_hasher=hasher, arrival_time=0.0
                )
            )

    def _abort(self) -> None:
        aborted = self.vllm.request.RequestStatus.FINISHED_ABORTED
        while self.deadlines and self.deadlines[0][0] <= self.now:
            moment, r = heapq.heappop(self.deadlines)
            if r not in self.finish:
                self.finish[r] = moment
                self.timed_out.add(r)
                if str(r) in self.scheduler.requests:
                    self.scheduler.finish_requests(str(r), aborted)

    def _launch(self) -> bool:
        output = self.scheduler.schedule()
        rows = [(int(q.req_id), q.num_computed_tokens) for q in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        ids = [int(i) for i in cached.req_ids]
        rows += list(zip(ids, cached.num_computed_tokens, strict=True))
        batch = [(r, output.num_scheduled_tokens[str(r)], computed) for r, computed in rows]
        if not batch:
            self.queue.append((self.now, output, [], []))
            return False
        duration = step_seconds(sum(b[1] for b in batch), sum(b[2] for b in batch))
        start = max(self.now, self.gpu_free)
        self.last_end = max(start + duration, self.last_end)
        self.gpu_free = start + duration / self.stages
        self.starts.append(start)
        self.batches.append(sorted([new, computed] for _, new, computed in batch))
        sampled = [self._is_sampled(*row) for row in batch]
        self.queue.append((self.last_end, output, batch, sampled))
        return True

    def _is_sampled(self, r: int, new: int, computed: int) -> bool:
        """Whether the worker samples: the batch reaches the end of the known tokens."""
        request = self.scheduler.requests[str(r)]
        return computed + new >= request.num_tokens + max(request.num_output_placeholders - 1, 0)

    def _finish_oldest(self) -> None:
        end, output, batch, sampled = self.queue.pop(0)
        self.now = max(self.now, end)
        self._abort()
        tokens = []
        for (r, _, _), is_sampled in zip(batch, sampled, strict=True):
            place = self.case["prompts"][r] + self.generated[r]
            tokens.append([self.sequences[r][place]] if is_sampled else [])
            if is_sampled and str(r) in self.scheduler.requests:
                self.generated[r] += 1
                if self.generated[r] == self.case["outputs"][r]:
                    self.finish[r] = self.now
        result = SimpleNamespace(
            sampled_token_ids=tokens,
            req_id_to_index={str(row[0]): i for i, row in enumerate(batch)},
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=None,
            num_nans_in_logits=None,
            kv_connector_output=None,
            cudagraph_stats=None,
        )
        self.scheduler.update_from_output(output, result)


def main() -> None:
    """Record the cases."""
    vllm = _import_vllm(Path(sys.argv[1]))
    cases = []
    for seed in range(int(sys.argv[2]) if len(sys.argv) > 2 else 16):
        case = random_case(seed)
        server = _Server(vllm, case)
        server.run()
        case["batches"] = server.batches
        case["starts"] = server.starts
        case["finish"] = [server.finish[r] for r in range(len(case["prompts"]))]
        case["timed_out"] = sorted(server.timed_out)
        cases.append(case)
    target = Path(sys.argv[3]) if len(sys.argv) > 3 else CASES
    rounded = json.loads(json.dumps(cases), parse_float=lambda text: round(float(text), 9))
    target.write_text(json.dumps(rounded, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
