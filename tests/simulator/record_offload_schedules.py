r"""Records schedules of vLLM's own scheduler with its OffloadingConnector, as a second KV tier.

    python tests/simulator/record_offload_schedules.py \
        0.15.1=/tmp/vllm-0.15.1 0.33.0=/tmp/vllm-0.33.0

The wheels are those of record_vllm_schedules.py; ``--case 17 0.33.0=/tmp/vllm-0.33.0`` prints what
the release makes of load 17. Scheduler, connector (both its sides) and the manager of the CPU's
blocks are vLLM's own; only the copies between GPU and host are replaced, by a link that takes one
transfer at a time.
"""

from __future__ import annotations

from collections.abc import MutableSet
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from record_vllm_schedules import _hash, _scheduler, _Server, record
from recorded_schedules import offload_case, transfer_seconds
from vllm_stand_ins import Config, Release

CASES = Path(__file__).with_name("offload_schedules.json")
_REAL = (
    "vllm.distributed.kv_transfer.kv_connector.v1",
    "vllm.distributed.kv_transfer.kv_connector.utils",
    "vllm.v1.kv_offload",
    "vllm.v1.metrics.cache_hit_source",
)
_PACKAGES = (
    "vllm.distributed",
    "vllm.distributed.kv_transfer",
    "vllm.distributed.kv_transfer.kv_connector",
    "vllm.v1.metrics",
)
_MOST_BATCHES = 5000


class _InOrder(MutableSet[Any]):
    """A set that keeps its order, in place of those whose order would be random."""

    def __init__(self, items: Any = ()) -> None:
        self.items = dict.fromkeys(items)

    def __contains__(self, item: Any) -> bool:
        return item in self.items

    def __iter__(self) -> Any:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: Any) -> None:
        """Add one."""
        self.items[item] = None

    def discard(self, item: Any) -> None:
        """Take one away."""
        self.items.pop(item, None)

    def update(self, items: Any) -> None:
        """Add several."""
        self.items.update(dict.fromkeys(items))

    def difference_update(self, items: Any) -> None:
        """Take several away."""
        for item in items:
            self.discard(item)


class _Link:
    """The way to the host: one transfer at a time, in the order in which they can begin."""

    def __init__(self) -> None:
        self.now = self.computed = self.free = self.waited = 0.0
        self.waiting: list[tuple[float, int, int, int]] = []
        self.ends: dict[int, float] = {}
        self.done: list[tuple[float, int]] = []
        self.log: list[list[float]] = []

    def _submit(self, job: int, load: bool, blocks: int) -> bool:
        self.waiting.append((self.now if load else self.computed, not load, job, blocks))
        return True

    def settle(self) -> None:
        """Transfers that were submitted get their times."""
        for ready, store, job, blocks in sorted(self.waiting, key=lambda each: each[:2]):
            start = max(ready, self.free)
            self.free = self.ends[job] = start + transfer_seconds(blocks)
            self.done.append((self.free, job))
            self.log.append([int(store), blocks, start, self.free])
        self.waiting.clear()

    def wait(self, jobs: Any) -> None:
        """Hold the worker up until transfers have ended."""
        self.settle()
        self.waited = max(self.waited, *(self.ends.get(job, 0.0) for job in jobs), 0.0)

    def finished(self) -> list[int]:
        """Return transfers that have ended since the last call."""
        moment = max(self.now, self.waited)
        ended = [job for end, job in self.done if end <= moment]
        self.done = [each for each in self.done if each[0] > moment]
        return ended

    def next_end(self) -> float:
        """When the next transfer ends."""
        return min((end for end, _ in self.done if end > self.now), default=float("inf"))


class _OldLink(_Link):
    """``OffloadingWorker``."""

    def transfer_async(self, job: int, spec: Any) -> bool:
        """A transfer of either kind."""
        from vllm.v1.kv_offload.mediums import GPULoadStoreSpec

        load = isinstance(spec[1], GPULoadStoreSpec)
        return self._submit(job, load, len(spec[load].block_ids))

    def get_finished(self) -> list[tuple[int, bool]]:
        """Return transfers that have ended."""
        return [(job, True) for job in self.finished()]


class _NewLink(_Link):
    """``OffloadingWorker`` of releases whose jobs have a class."""

    def submit_store(self, job: int, src: Any, dst: Any) -> bool:  # noqa: ARG002
        """GPU to host."""
        return self._submit(job, False, len(src.block_ids))

    def submit_load(self, job: int, src: Any, dst: Any, expedited: bool = False) -> bool:  # noqa: ARG002
        """Host to GPU."""
        return self._submit(job, True, len(dst.block_ids))

    def get_finished(self) -> list[Any]:
        """Return transfers that have ended."""
        names = {"success": True, "transfer_size": None, "transfer_time": None}
        return [SimpleNamespace(job_id=job, **names) for job in self.finished()]


class _OffloadServer(_Server):
    """The busy loop with a connector."""

    def __init__(self, release: Release, case: dict[str, Any]) -> None:
        self.kept: list[list[Any]] = []
        super().__init__(release, case)

    def _make(self, config: Config) -> Any:
        import vllm.v1.core.sched.scheduler as synchronous

        offload = self.case["offload"]
        extra = {"block_size": offload["block_size"], "eviction_policy": offload["policy"]}
        extra |= {"offload_prompt_only": offload["prompt_only"], "cpu_bytes_to_use": 1}
        config.kv_transfer_config = Config(
            kv_connector_extra_config=extra,
            is_kv_consumer=True,
            is_kv_producer=True,
            engine_id="engine",
            kv_load_failure_policy="recompute",
        )
        config.cache_config.prefix_cache_retention_interval = None
        config.parallel_config.world_size = 1
        synchronous.set = _InOrder
        factory = SimpleNamespace(create_connector=self._connector)
        synchronous.KVConnectorFactory = factory
        return _scheduler(config)

    def _connector(self, config: Any, role: Any, kv_cache_config: Any) -> Any:  # noqa: ARG002
        import vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector as module

        chunks = self.case["offload"]["chunks"]
        connector = object.__new__(module.OffloadingConnector)
        connector._kv_transfer_config = config.kv_transfer_config
        connector._kv_cache_config = kv_cache_config
        if hasattr(module, "build_offloading_config"):
            from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

            given = self._offloading_config(config)
            spec = CPUOffloadingSpec(given)
            spec.num_chunks = chunks
            connector.connector_scheduler = module.OffloadingConnectorScheduler(
                spec, config, kv_cache_config
            )
            self.link: _Link = _NewLink()
            worker = module.OffloadingConnectorWorker(spec, config, kv_cache_config)
        else:
            from vllm.v1.kv_offload.cpu import CPUOffloadingSpec as OldSpec

            size = config.cache_config.block_size
            spec = object.__new__(OldSpec)
            spec.vllm_config, spec.num_blocks, spec._manager = config, chunks, None
            spec.gpu_block_size, spec.eviction_policy = size, "lru"
            spec.offloaded_block_size = self.case["offload"]["block_size"]
            connector.connector_scheduler = module.OffloadingConnectorScheduler(spec)
            self.link = _OldLink()
            worker = module.OffloadingConnectorWorker(spec)
        worker.worker = self.link
        self.worker = worker
        self._watch(connector.connector_scheduler.manager)
        return connector

    def _offloading_config(self, config: Any) -> Any:
        from vllm.v1.kv_offload import config as kinds

        extra = dict(config.kv_transfer_config.kv_connector_extra_config)
        size = config.cache_config.block_size
        group = kinds.OffloadingGroupConfig(
            group_id=0,
            tokens_per_block=size,
            layer_names=("layer",),
            sliding_window_size_in_chunks=None,
        )
        parallel = Config(rank=0, world_size=1)
        cache = kinds.OffloadingCacheConfig(
            tokens_per_hash=size, blocks_per_chunk=self.case["offload"]["block_size"] // size
        )
        return Config(
            groups=(group,),
            worker_kv_bytes_per_block=1,
            enable_kv_cache_events=False,
            extra_config=extra,
            cache=cache,
            parallel=parallel,
            replicated_layout=False,
            canonical_layout=False,
        )

    def _watch(self, manager: Any) -> None:
        store, load = manager.prepare_store, manager.prepare_load

        def prepare_store(keys: Any, *context: Any) -> Any:
            found = store(list(keys), *context)
            if found is not None:
                names = ("keys_to_store", "block_hashes_to_store")
                stored = next(getattr(found, name) for name in names if hasattr(found, name))
                names = ("evicted_keys", "block_hashes_evicted")
                evicted = next(getattr(found, name) for name in names if hasattr(found, name))
                if stored:
                    self._keep("store", stored, evicted)
            return found

        def prepare_load(keys: Any, *context: Any) -> Any:
            keys = list(keys)
            self._keep("load", keys, ())
            return load(keys, *context)

        manager.prepare_store, manager.prepare_load = prepare_store, prepare_load

    def _keep(self, kind: str, keys: Any, evicted: Any) -> None:
        numbers = [[self._number(key) for key in some] for some in (keys, evicted)]
        self.kept.append([kind, len(self.batches), *numbers])

    def _number(self, key: bytes) -> int:
        return next(self.numbers[key[:n]] for n in (32, len(key)) if key[:n] in self.numbers)

    def number_blocks(self) -> None:
        """Give every block content a number, in the order of the requests."""
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher

        hasher = get_request_block_hasher(self.case["serving"]["block_size"], _hash)
        self.numbers: dict[bytes, int] = {}
        for tokens in self.sequences:
            shadow = self._request("shadow", tokens, hasher)
            for each in shadow.block_hashes:
                self.numbers.setdefault(bytes(each), len(self.numbers))

    def run(self) -> dict[str, Any]:
        """Serve the load."""
        self.number_blocks()
        step = self.release.step if self.core.batch_queue is None else self.release.queued_step
        idle = 0
        while True:
            if not self.scheduler.has_requests() and not self.core.batch_queue:
                if self.sent == len(self.sequences):
                    break
                self.now = max(self.now, self.case["offsets"][self.sent])
                self.abort()
            self._drain_input()
            before = self._progress()
            if len(self.batches) > _MOST_BATCHES:
                return {"stuck": True}  # requests preempt each other for ever
            step(self.core)
            idle = 0 if self._progress() != before else idle + 1
            if idle > 4:  # it polls until something happens
                arrivals = self.case["offsets"][self.sent :][:1]
                deadlines = [moment for moment, _ in self.deadlines[:1] if moment > self.now]
                moment = min(*arrivals, *deadlines, self.link.next_end(), float("inf"))
                if moment == float("inf"):
                    return {"stuck": True}  # requests hold blocks that the others wait for
                self.now, idle = moment, 0
                self.abort()
        return {
            "batches": self.batches,
            "starts": self.starts,
            "finish": [self.finish[r] for r in range(len(self.sequences))],
            "timed_out": sorted(self.timed_out),
            "kept": self.kept,
            "link": self.link.log,
        }

    def _progress(self) -> tuple[Any, ...]:
        return (
            self.now, len(self.batches), len(self.link.log), len(self.link.done), len(self.kept),
            len(self.finish), self.sent,
        )  # fmt: skip

    def execute_model(self, output: Any, non_block: bool = False) -> Any:
        """Launch a batch and what the connector transfers beside it."""
        meta, link, worker = output.kv_connector_metadata, self.link, self.worker
        link.now, link.waited = self.now, 0.0
        link.computed = max(self.now, self.last_end)
        tokens = output.total_num_scheduled_tokens
        if isinstance(link, _NewLink):
            worker.handle_preemptions(meta)
        elif output.preempted_req_ids:
            worker.handle_preemptions(output.preempted_req_ids)
        worker.start_kv_transfers(meta)
        link.settle()
        self.gpu_free = max(self.gpu_free, link.waited)
        batch = super().execute_model(output, non_block)
        if tokens or isinstance(link, _NewLink):
            worker.prepare_store_kv(meta)
        sent, received = worker.get_finished(output.finished_req_ids)
        built = getattr(worker, "build_connector_worker_meta", lambda: None)()
        batch.connector_output = SimpleNamespace(
            finished_sending=sorted(sent, key=int),
            finished_recving=sorted(received, key=int),
            failed_recving=None,
            invalid_block_ids=set(),
            kv_connector_stats=None,
            kv_connector_worker_meta=built,
            kv_cache_events=None,
        )
        return batch


def _serve(source: Path, seeds: list[int]) -> list[dict[str, Any]]:
    release = Release(source, _hash, _REAL, _PACKAGES)
    return [_OffloadServer(release, offload_case(seed)).run() for seed in seeds]


if __name__ == "__main__":
    record(_serve, offload_case, CASES)
