r"""Records what SGLang's own radix trees with HiCache make of random loads.

    python tests/simulator/record_hicache_trees.py \
        0.5.12=/tmp/sglang-0.5.12 0.5.23=/tmp/sglang-0.5.23

The wheels are unpacked as in record_sglang_schedules.py; ``--case 17 0.5.23=/tmp/sglang-0.5.23``
prints what the release makes of load 17. ``HiRadixCache`` (0.5.12) and ``UnifiedRadixCache``
(0.5.23) are SGLang's own. The pools count places, and transfers end when the load says so.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import record_sglang_schedules as schedules
import torch
from hicache_loads import LOADS, Tree, digest, tree_case
from recorded_schedules import sequences

CASES = Path(__file__).with_name("hicache_trees.json")
_SRT = "sglang.srt"
_OLD = (
    "mem_cache.hiradix_cache", "mem_cache.radix_cache", "mem_cache.base_prefix_cache",
    "mem_cache.cache_init_params", "mem_cache.evict_policy", "mem_cache.utils", "mem_cache.events",
    "environ",
)  # fmt: skip
_NEW = (
    *_OLD[1:], "mem_cache.unified_radix_cache", "mem_cache.hicache_storage",
    "mem_cache.unified_cache", "mem_cache.unified_cache.cache_action",
    "mem_cache.unified_cache.component_type", "mem_cache.unified_cache.components",
    "mem_cache.unified_cache.components.base", "mem_cache.unified_cache.components.full",
    "mem_cache.unified_cache.tree_core_registry", "mem_cache.unified_cache.unified_tree_core",
    "mem_cache.unified_cache.unified_tree_core_interface",
    "mem_cache.unified_cache.session_ref_tracker", "utils.token_sequence_matcher",
)  # fmt: skip
_PACKAGES = ("", "mem_cache", "utils", "mem_cache.unified_cache",
             "mem_cache.unified_cache.components")  # fmt: skip


class _Pool:
    """Places for tokens, taken in whole pages."""

    device, shared_allocation_domain, page_size = torch.device("cpu"), None, 1

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_places = list(range(1, size + 1))

    def available_size(self) -> int:
        """Free places."""
        return len(self.free_places)

    def alloc(self, size: int) -> torch.Tensor | None:
        """Take places; None if there are too few."""
        if size > len(self.free_places):
            return None
        taken, self.free_places = self.free_places[:size], self.free_places[size:]
        return torch.tensor(taken, dtype=torch.int64)

    def free(self, places: torch.Tensor, *_: Any, **__: Any) -> int:
        """Give places back."""
        self.free_places += places.tolist()
        assert len(set(self.free_places)) == len(self.free_places) <= self.size
        return len(places)

    free_segment = free

    def mamba_full_cache_donor(self) -> None:
        """Nobody."""


class _Event:
    """Whether a transfer has ended."""

    done = False

    def query(self) -> bool:
        """Ask."""
        return self.done

    def synchronize(self) -> None:
        """Wait for it."""
        self.done = True


class _Controller:
    """``HiCacheController`` without copies."""

    def __init__(self, case: dict[str, Any], gpu: _Pool, host: _Pool, merges: bool) -> None:
        self.write_policy, self.merges = case["policy"], merges
        self.mem_pool_device_allocator, self.mem_pool_host = gpu, host
        host.anchor_entry = SimpleNamespace(host_pool=host, host_evict_fn=None)
        self.ack_write_queue: list[Any] = []
        self.ack_load_queue: list[Any] = []
        self.pending: list[int] = []

    def _ack(self, nodes: list[int]) -> Any:
        if not self.merges:
            return None, _Event(), nodes
        return SimpleNamespace(
            finish_event=_Event(), node_ids=nodes, num_tokens_by_pool={}, num_bytes=0,
            timing_enabled=False,
        )  # fmt: skip

    def write(self, device_indices: Any, node_id: int = -1, **_: Any) -> Any:
        """Plan to store a node."""
        found = self.mem_pool_host.alloc(len(device_indices))
        if found is not None and self.merges:
            self.pending.append(node_id)
        elif found is not None:
            self.ack_write_queue.append(self._ack([node_id]))
        return found

    def start_writing(self) -> None:
        """Store all that is planned as one."""
        if self.pending:
            self.ack_write_queue.append(self._ack(self.pending))
            self.pending = []

    def load(self, host_indices: Any, node_id: int = -1, **_: Any) -> Any:
        """Load a node and those above it."""
        found = self.mem_pool_device_allocator.alloc(len(host_indices))
        if found is not None:
            self.ack_load_queue.append(self._ack([node_id]))
        return found

    def evict_device(self, places: Any) -> int:
        """Free places on the GPU."""
        return self.mem_pool_device_allocator.free(places)

    def evict_host(self, places: Any, backup_only: bool = True) -> int:  # noqa: ARG002
        """Free places on the host."""
        return self.mem_pool_host.free(places)

    def reset(self) -> None:
        """Nothing is under way."""


class _SglangTree(Tree):
    """Interface of the radix tree that both releases share."""

    merges = False

    def __init__(self, case: dict[str, Any], sglang: dict[str, Any]) -> None:
        super().__init__(case)
        self.sglang, self.page = sglang, case["page"]
        self.gpu = _Pool(case["pages"] * self.page)
        self.host = _Pool(case["host_pages"] * self.page)
        self.rows = SimpleNamespace(
            req_to_token=torch.zeros((len(case["prompts"]), 256), dtype=torch.int64)
        )
        self.rows.write = self._write
        self.sequences = sequences(case)
        self.controller = _Controller(case, self.gpu, self.host, self.merges)
        self.parameters = sglang["mem_cache.cache_init_params"].CacheInitParams(
            disable=False, req_to_token_pool=self.rows, token_to_kv_pool_allocator=self.gpu,
            page_size=self.page,
        )  # fmt: skip
        self.requests: dict[int, Any] = {}
        self.cache = self.make()

    def _write(self, where: Any, values: Any) -> None:
        self.rows.req_to_token[where] = values

    def make(self) -> Any:
        """SGLang's tree."""
        raise NotImplementedError

    def key(self, tokens: list[int]) -> Any:
        """``RadixKey`` of tokens."""
        raise NotImplementedError

    def found(self, r: int) -> Any:
        """``match_prefix`` of a prompt, all but its last token."""
        tokens = self.sequences[r][: self.case["prompts"][r]]
        kind = self.sglang["mem_cache.base_prefix_cache"].MatchPrefixParams
        return self.cache.match_prefix(kind(key=self.key(tokens[:-1])))

    def evict(self, size: int) -> None:
        """``evict_from_tree_cache``."""
        raise NotImplementedError

    def take(self, r: int, tokens: int) -> None:
        request = self.requests[r]
        held = -(-request.held // self.page) * self.page
        size = -(-tokens // self.page) * self.page - held
        request.held = tokens
        self.evict(size)
        if size:
            places = self.gpu.alloc(size)
            assert places is not None, "out of memory"
            self.rows.req_to_token[r, held : held + size] = places

    def hear(self, stores: int) -> None:
        queue = self.controller.ack_write_queue
        for ack in [*queue[:stores], *self.controller.ack_load_queue]:
            event = ack.finish_event if self.merges else ack[1]
            event.done = True
        self.controller.start_writing()
        self.cache.writing_check()
        self.cache.loading_check()

    def state(self) -> list[int]:
        used = self.host.size - len(self.host.free_places)
        return [len(self.gpu.free_places), self.cache.evictable_size(), used,
                len(self.cache.ongoing_write_through)]  # fmt: skip


class _OldTree(_SglangTree):
    """``HiRadixCache`` of 0.5.12."""

    def make(self) -> Any:
        found = self.sglang["mem_cache.hiradix_cache"].HiRadixCache
        cache = found.__new__(found)
        values = dict(  # noqa: C408
            cache_controller=self.controller, token_to_kv_pool_host=self.host, page_size=self.page,
            ongoing_write_through={}, ongoing_load_back={}, enable_storage=False,
            write_through_threshold=1 if self.case["policy"] == "write_through" else 2,
            load_back_threshold=10, evictable_host_leaves=set(), metrics_collector=None,
            prefetch_loaded_tokens_by_reqid={}, attn_cp_group=None, attn_tp_group=None,
            tp_world_size=1, enable_storage_metrics=False, kv_cache=None,
        )  # fmt: skip
        for name, value in values.items():
            setattr(cache, name, value)
        self.host.clear = lambda: None
        super(found, cache).__init__(params=self.parameters)
        return cache

    def key(self, tokens: list[int]) -> Any:
        return self.sglang["mem_cache.radix_cache"].RadixKey(list(tokens), None)

    def match(self, r: int) -> tuple[int, int]:
        found = self.found(r)
        tokens = self.sequences[r]
        request = SimpleNamespace(
            extra_key=None, priority=0, req_pool_idx=r, origin_input_ids=list(tokens),
            output_ids=[], prefix_indices=found.device_indices, last_node=found.last_device_node,
            best=found.best_match_node, held=len(found.device_indices),
        )  # fmt: skip
        request.pop_committed_kv_cache = lambda: request.held
        request.cache_protected_len = request.held
        self.requests[r] = request
        self.rows.req_to_token[r, : request.held] = found.device_indices
        return request.held, found.host_hit_length

    def lock(self, r: int) -> None:
        self.cache.inc_lock_ref(self.requests[r].last_node)

    def unlock(self, r: int) -> None:
        self.cache.dec_lock_ref(self.requests[r].last_node)

    def load(self, r: int) -> int:
        request = self.requests[r]
        kind = self.sglang["mem_cache.base_prefix_cache"].InitLoadBackParams
        before = request.last_node
        places, request.last_node = self.cache.init_load_back(
            kind(best_match_node=request.best, host_hit_length=0)
        )
        self.cache.inc_lock_ref(request.last_node)
        self.cache.dec_lock_ref(before)
        self.rows.req_to_token[r, request.held : request.held + len(places)] = places
        request.held += len(places)
        request.cache_protected_len = request.held
        return len(places)

    def evict(self, size: int) -> None:
        if self.gpu.available_size() < size:
            kind = self.sglang["mem_cache.base_prefix_cache"].EvictParams
            self.cache.evict(kind(num_tokens=size))

    def put(self, r: int, tokens: int, chunked: bool, ends: bool) -> None:
        request = self.requests[r]
        if ends:
            request.origin_input_ids = request.origin_input_ids[:tokens]
            self._end(request, True)
            return
        request.fill_ids = self.sequences[r][:tokens]
        self.cache.cache_unfinished_req(request, chunked=chunked)

    def _end(self, request: Any, puts: bool) -> None:
        # Places up to the page's end are the request's, too.
        whole = -(-request.held // self.page) * self.page
        rest = self.rows.req_to_token[request.req_pool_idx, request.held : whole]
        self.cache.cache_finished_req(request, is_insert=puts)
        if len(rest):
            self.gpu.free(rest)

    def drop(self, r: int) -> None:
        request = self.requests[r]
        request.origin_input_ids = request.origin_input_ids[: request.held]
        self._end(request, False)


class _NewTree(_SglangTree):
    """``UnifiedRadixCache`` of 0.5.23."""

    merges = True

    def make(self) -> Any:
        module = self.sglang["mem_cache.unified_radix_cache"]
        self.parameters.tree_components = (module.ComponentType.FULL,)
        self.parameters.tree_core_backend = "python"
        module.StreamingSession = lambda _: SimpleNamespace(
            try_match_prefix=lambda _: None, try_checkpoint=lambda *_, **__: False, slots={}
        )
        cache = module.UnifiedRadixCache(self.parameters)
        self.host.clear = lambda: None
        self.controller.enable_storage = False
        cache.cache_controller = self.controller
        cache.host_pool_group = SimpleNamespace(
            free=lambda places, **_: self.host.free(places), anchor_entry=self.host.anchor_entry
        )
        cache.metrics_collector = None
        cache.components[module.ComponentType.FULL]._full_kv_pool_host = self.host
        cache.tree_core.set_hicache_enabled()
        cache.write_through_threshold = 1 if self.case["policy"] == "write_through" else 2
        cache.is_write_back = self.case["policy"] == "write_back"
        cache.load_back_threshold = 10
        return cache

    def key(self, tokens: list[int]) -> Any:
        return self.sglang["mem_cache.radix_cache"].RadixKey(array("q", tokens), None)

    def match(self, r: int) -> tuple[int, int]:
        found = self.found(r)
        kv = SimpleNamespace(
            req_pool_idx=r, cache_protected_len=found.device_prefix_len, cache_inserted_len=0,
            mamba_pool_idx=None,
        )  # fmt: skip
        request = SimpleNamespace(
            extra_key=None, cache_salt=None, priority=0, kv=kv, lock=None, session_id=None,
            origin_input_ids=array("q", self.sequences[r][: self.case["prompts"][r]]),
            full_untruncated_fill_ids=array("q", self.sequences[r]),
            last_node=found.last_device_node, best=found.best_match_node,
            held=found.device_prefix_len, kv_rotation_base=None,
            finished=lambda: False, swa_host_hit_length=0, mamba_host_hit_length=0, rid=str(r),
        )  # fmt: skip
        self.requests[r] = request
        self.rows.req_to_token[r, : request.held] = self.cache.path_device_indices(
            request.last_node
        )
        return request.held, found.host_hit_length

    def lock(self, r: int) -> None:
        request = self.requests[r]
        request.lock = self.cache.lock(request.last_node)

    def unlock(self, r: int) -> None:
        self.cache.unlock(self.requests[r].lock)

    def load(self, r: int) -> int:
        request = self.requests[r]
        kind = self.sglang["mem_cache.base_prefix_cache"].InitLoadBackParams
        held = self.cache.inc_host_lock_ref(request.best).to_dec_params()
        loaded, request.last_node = self.cache.init_load_back(
            kind(best_match_node=request.best, host_hit_length=1, req=request)
        )
        self.cache.dec_host_lock_ref(request.best, held)
        before, request.lock = request.lock, self.cache.lock(request.last_node)
        self.cache.unlock(before)
        request.held += loaded
        request.kv.cache_protected_len = request.held
        self.rows.req_to_token[r, : request.held] = self.cache.path_device_indices(
            request.last_node
        )
        return loaded

    def evict(self, size: int) -> None:
        missing = size - self.gpu.available_size()
        if missing > 0:
            kind = self.sglang["mem_cache.base_prefix_cache"].EvictParams
            self.cache.evict_for_alloc(kind(num_tokens=missing))

    def put(self, r: int, tokens: int, chunked: bool, ends: bool) -> None:  # noqa: ARG002
        request = self.requests[r]
        request.finished = lambda: ends
        self.cache.checkpoint_into_tree(request, up_to=tokens)
        if ends:
            self.drop(r)

    def drop(self, r: int) -> None:
        request = self.requests[r]
        whole = -(-request.held // self.page) * self.page
        self.gpu.free(self.rows.req_to_token[r, request.kv.cache_protected_len : whole])
        self.cache.unlock(request.lock)

    def hear(self, stores: int) -> None:
        # A scheduler's turn submits what is planned before it asks what has ended.
        self.controller.start_writing()
        super().hear(stores)


def _import(source: Path, names: tuple[str, ...]) -> dict[str, Any]:
    real = tuple(f"{_SRT}.{name}" for name in names)
    packages = ("sglang", *(f"{_SRT}.{p}".rstrip(".") for p in _PACKAGES))
    sys.meta_path.insert(0, schedules.StandIns(source, real, packages))
    found = {name: importlib.import_module(f"{_SRT}.{name}") for name in names}
    plain = {"page_interleave_shard_size": 1, "is_virtual_node": False}
    for module in found.values():
        for name, value in plain.items():
            if name in vars(module):
                setattr(module, name, lambda *_, value=value: value)
    return found


def _serve(release: str, source: Path, seeds: list[int]) -> list[list[Any]]:
    new = release >= "0.5.19"
    sglang = _import(source, _NEW if new else _OLD)
    kind = _NewTree if new else _OldTree
    return [kind(tree_case(seed, small_host=new), sglang).serve() for seed in seeds]


def main() -> None:
    """Record the loads, each release in a process of its own."""
    words = sys.argv[1:]
    if words[0] == "--case":
        release, _, folder = words[2].partition("=")
        print(json.dumps(_serve(release, Path(folder), [int(words[1])])[0]))
        return
    found: dict[str, Any] = {}
    for word in words:
        release, _, folder = word.partition("=")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            logs = pool.apply(_serve, (release, Path(folder), list(range(LOADS))))
        found[release] = [digest(log) for log in logs]
        print(release, sum(map(len, logs)), "operations")
    CASES.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
