"""The engine's state in flat arrays: one record of settings, counters and array addresses.

A record is passed as one pointer. A tuple of thirty arrays would be passed as two hundred numbers
and counted up and down at every call, which makes both the compiler and the loop several times
slower. Each accessor below turns an address back into an array of its type and shape.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
from jaxtyping import Shaped
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin, type_callable

from pinn.common.documents import MOST_ENGINE_BYTES, check_size
from pinn.simulator.state import FIRST_SUM, GROUP, QUEUE, REPLICA, REQUEST, SERVER, STEP_COLUMNS

_INT64 = ir.IntType(64)

#: Whole numbers of an engine: what does not change during a run.
_SETTINGS = (
    "token_budget", "max_model_len", "block_tokens", "slots", "long_prefill",
    "window", "full_groups", "window_groups", "window_blocks", "prefix_caching", "chunked_prefill",
    "asynchronous", "pipeline_parallel_size", "least_loaded", "concurrency",
    "stages_wait",
    "max_seqs",  # rows of a batch
    "blocks",  # blocks of one replica that a run can come to use
    "cache_blocks",  # blocks of one replica
    "row",  # width of a block-table row
    # Rules of the scheduler, see ``pinn.engines.recipe``.
    "whole_prompts", "uncached_first", "cuts_lone_prompts", "awaits_preempted", "chunk_multiple",
    "poll_interval", "prompt_wait_steps", "prompt_wait_tokens",
    "one_batch",  # a request is in one batch at a time
    "stagger",  # schedulings between two decodes of a request; 0 for any
    "foresees_ends",  # whether SGLang plans by the lengths of outputs
    "prefill_first",  # prompts in steps of their own
    "prompt_budget",  # prompt tokens after which such a step takes no further request
    "reserves",  # requests are admitted with room for their whole output
    "waits_for_all",  # until every replica has a prompt
    "rounds_up",  # decodes to the next CUDA graph
    "drafts",  # drafted tokens that a decode brings to be verified
    "lookahead",  # tokens beyond those for which it holds blocks
    "depth",  # batches in flight
    "one_process",  # engine and API server share it
    "keeps_batches",  # for latency models that read them
    "role",  # of prefill and decode apart, see ``pinn.simulator.state``
)  # fmt: skip

#: Lengths of its arrays.
_SIZES = (
    "n_requests", "n_replicas", "n_groups", "n_servers", "n_stages", "n_distinct_keys", "n_sums",
    "n_chances", "n_columns", "step_rows", "gap_rows",
    "n_copies",  # of the deployment, behind one load balancer
    "n_sources",  # prefill workers that keys and values come from
    "n_keys",  # of all requests together
    "n_block_ids",  # blocks and the sentinel of the free list
    "n_graphs",  # entries of the table of CUDA graphs
    "n_guesses",  # requests that an admission looks at
)  # fmt: skip

#: What changes.
_COUNTERS = (
    "open_stage", "round_robin", "endings", "deadlines",  # the last two: entries of two heaps
    "next",  # request that is sent next
    "sent",  # requests whose clients wait, under a concurrency limit
    "unresolved",  # requests of the open stage that have not ended
    "n_steps", "n_gaps",  # filled rows of the record buffers
    "progress",  # tokens generated and requests ended
    "leaving",  # requests that go over to the other pool
)  # fmt: skip

#: Fractions and moments, settings first.
_REALS = (
    "gpu_cache_tokens", "stage_gap_s", "transfer_latency_s", "transfer_token_s",
    "source_token_s",  # the same on the prefill worker's link
    "admission_share",  # of an output, at first
    "most_reread",  # share of the decodes' context
    "opened_s", "stage_end_s", "publish_s", "bad_step_s",
)  # fmt: skip

#: Arrays of an engine by name. ``ARRAYS`` has their shapes: an annotation would say nothing, and
#: to check one jaxtyping writes out the whole type of a record, three times a simulation's work.
EngineArrays = dict[str, np.ndarray]

#: Name -> (type, shape) of every array.
ARRAYS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "requests": (REQUEST, ("n_requests",)),
    "replicas": (REPLICA, ("n_replicas",)),
    "waiting": (QUEUE, ("n_replicas",)),  # in the scheduler
    "input": (QUEUE, ("n_replicas",)),  # of the engine
    "groups": (GROUP, ("n_groups",)),
    "servers": (SERVER, ("n_servers",)),
    "stage_starts_s": (np.float64, ("n_stages",)),
    "stage_sizes": (np.int64, ("n_stages",)),
    "keys": (np.int32, ("n_keys",)),  # block keys of every request, one after the other
    **dict.fromkeys(("running", "new", "preempted"), (np.int64, ("n_replicas", "max_seqs"))),
    "table": (np.int32, ("n_replicas", "slots", "row")),
    "slot_stack": (np.int32, ("n_replicas", "slots")),
    "next_free": (np.int32, ("n_replicas", "n_block_ids")),
    "previous_free": (np.int32, ("n_replicas", "n_block_ids")),
    "references": (np.int32, ("n_replicas", "n_block_ids")),
    "block_key": (np.int32, ("n_replicas", "n_block_ids")),
    "twin": (np.int32, ("n_replicas", "n_block_ids")),  # next block with the same key, or 0
    "holder": (np.int32, ("n_replicas", "n_distinct_keys")),  # first block with a key, or 0
    "batch_size": (np.int64, ("n_replicas", "depth")),
    "batch_request": (np.int64, ("n_replicas", "depth", "max_seqs")),
    "batch_new": (np.int32, ("n_replicas", "depth", "max_seqs")),
    "batch_cached": (np.int32, ("n_replicas", "depth", "max_seqs")),
    "batch_prefill": (np.int8, ("n_replicas", "depth", "max_seqs")),
    "batch_sampled": (np.int8, ("n_replicas", "depth", "max_seqs")),  # tokens that may come of it
    "batch_prompts": (np.int8, ("n_replicas", "depth")),  # whether it is of prompts alone
    "batch_end_s": (np.float64, ("n_groups", "depth")),
    "sums": (np.float64, ("n_replicas", "n_sums")),
    "graph_size": (np.int64, ("n_graphs",)),  # what a number of decodes is rounded up to
    "chances": (np.float64, ("n_chances",)),  # that at least 1, 2, ... drafted tokens are accepted
    "tokens_left": (np.int64, ("n_guesses",)),
    "tokens_held": (np.int64, ("n_guesses",)),
    "ending_s": (np.float64, ("n_requests",)),  # heap: when clients see a request end
    "ending_id": (np.int64, ("n_requests",)),
    "deadline_s": (np.float64, ("n_requests",)),  # heap: when clients hang up
    "deadline_id": (np.int64, ("n_requests",)),
    "leaving_s": (np.float64, ("n_requests",)),
    "leaving_id": (np.int64, ("n_requests",)),
    "source_free_s": (np.float64, ("n_sources",)),
    "steps": (np.float64, ("step_rows", "n_columns")),
    "gap_s": (np.float64, ("gap_rows",)),  # runs of equal gaps between tokens
    "gap_count": (np.int64, ("gap_rows",)),
    "gap_tokens": (np.int64, ("gap_rows",)),  # that come together at the end of each of them
}

_WHOLE = (*_SETTINGS, *_SIZES, *_COUNTERS)
ENGINE = np.dtype(
    [*((name, "i8") for name in _WHOLE), *((name, "f8") for name in _REALS),
     ("address", "i8", (len(ARRAYS),))],
    align=True,
)  # fmt: skip


@cache
def _accessor(name: str) -> Callable:
    """A function ``engine, *index -> array``, or what is at the index: an entry or a row.

    A look-up in plain Python, a few loads in compiled code; there indices are from 0 on. An entry
    is looked up here, not with brackets: numba takes a third of its time to understand those.
    """
    dtype, shape = ARRAYS[name]
    item: Any = numba.from_dtype(np.dtype(dtype))
    item_bytes, position = np.dtype(dtype).itemsize, list(ARRAYS).index(name)

    def view(engine, *index):
        found = engine.arrays[name]
        for i in index:
            found = found[i]
        return found

    def part(dimensions: int) -> Any:
        return types.Array(item, dimensions, "C") if dimensions > 0 else item

    @type_callable(view)
    def _(_context):
        def typed(engine, i=None, j=None, k=None):
            given = 3 - [i, j, k].count(None)
            return part(len(shape) - given) if isinstance(engine, types.Record) else None

        return typed

    @lower_builtin(view, types.Record, types.VarArg(types.Any))
    def _(context, builder, signature, args):
        def load(field, index=0):
            offset = signature.args[0].offset(field) + index * _INT64.width // 8
            where = cgutils.pointer_add(builder, args[0], offset)
            return builder.load(builder.bitcast(where, _INT64.as_pointer()))

        sizes = [load(field) for field in shape]
        strides = [context.get_constant(types.intp, item_bytes)]
        for size in reversed(sizes[1:]):
            strides.insert(0, builder.mul(strides[0], size))
        address = load("address", position)
        for i, kind in enumerate(signature.args[1:]):
            at = context.cast(builder, args[1 + i], kind, types.intp)
            address = builder.add(address, builder.mul(at, strides[i]))
        data = builder.inttoptr(address, context.get_data_type(item).as_pointer())
        given = len(args) - 1
        if given == len(shape):
            return context.unpack_value(builder, item, data)
        array_type = part(len(shape) - given)
        array = context.make_array(array_type)(context, builder)
        context.populate_array(
            array,
            data=builder.bitcast(data, array.data.type),
            shape=sizes[given:],
            strides=strides[given:],
            itemsize=item_bytes,
            meminfo=None,
        )
        return array._getvalue()

    return view


def __getattr__(name: str) -> Callable:
    """The accessor of an array has the array's name: ``requests(engine, r)``."""
    if name not in ARRAYS:
        raise AttributeError(f"a simulated engine has no array {name!r}")
    return _accessor(name)


# An engine before its first request: settings, idle replicas, empty queues.

_STEP_ROWS = 1 << 16
#: Written row by row before anything reads them; clearing it takes as long as a short run.
_RECORDED = {"steps", "gap_s", "gap_count", "gap_tokens"}


@dataclass(frozen=True)
class Engine:
    """State of a simulation.

    Attributes:
        record: Structured array ``ENGINE [1]``: settings, counters and addresses of the arrays.
        arrays: The arrays by name; they live as long as this object.
    """

    record: Shaped[np.ndarray, "1"]
    arrays: EngineArrays

    @property
    def handle(self) -> Any:
        """The record itself, as compiled functions take it."""
        return self.record.view(np.recarray)[0]


class PlainEngine(SimpleNamespace):
    """An engine for plain Python: settings and counters as attributes, records as objects."""

    arrays: dict[str, Any]

    def __init__(self, engine: Engine) -> None:
        super().__init__(**_fields(engine.record[0]) | {"keeps_batches": 1})
        self.arrays = {
            name: [SimpleNamespace(**_fields(row)) for row in array] if array.dtype.names else array
            for name, array in engine.arrays.items()
        }

    def write_back(self, engine: Engine) -> None:
        """Copy the requests into the engine's array, for reading them."""
        requests = engine.arrays["requests"]
        for i, request in enumerate(self.arrays["requests"]):
            requests[i] = tuple(vars(request).values())


def _fields(row: np.void) -> dict[str, Any]:
    return {name: row[name].tolist() for name in row.dtype.names or ()}


def new_engine(settings: dict[str, float], given: EngineArrays, distinct: int) -> Engine:
    """Build an idle engine.

    Args:
        settings: Value of every setting, and ``n_replicas``, ``n_groups``, ``n_copies`` and
            ``n_servers``.
        given: Arrays ``requests``, ``keys``, ``stage_starts_s``, ``stage_sizes``, ``graph_size``
            and ``chances``.
        distinct: How many different block keys there are.
    """
    record = np.zeros(1, ENGINE)
    for name, value in settings.items():
        record[name] = value
    seqs, depth = record["max_seqs"][0], record["depth"][0]
    for name, array in given.items():
        (size,) = ARRAYS[name][1]
        record[size] = len(array)
    record["n_distinct_keys"] = distinct
    record["n_block_ids"] = record["blocks"] + 1
    record["n_guesses"] = seqs + 2
    record["n_sums"], record["n_columns"] = len(STEP_COLUMNS) - FIRST_SUM, len(STEP_COLUMNS)
    record["step_rows"] = _STEP_ROWS
    record["gap_rows"] = _STEP_ROWS + record["n_replicas"] * seqs * depth
    record["unresolved"] = given["stage_sizes"][0]
    record["opened_s"] = given["stage_starts_s"][0]
    made = {
        name: (tuple(int(record[size][0]) for size in shape), np.dtype(dtype))
        for name, (dtype, shape) in ARRAYS.items()
        if name not in given
    }
    check_size(
        sum(math.prod(shape) * dtype.itemsize for shape, dtype in made.values()),
        MOST_ENGINE_BYTES,
        "bytes of the simulated engine",
        "lower --max-num-seqs, --data-parallel-size or --num-gpu-blocks-override",
    )
    arrays = {
        name: (np.empty if name in _RECORDED else np.zeros)(*made[name])
        if name in made
        else np.ascontiguousarray(given[name], dtype=dtype)
        for name, (dtype, _) in ARRAYS.items()
    }
    _make_idle(record, arrays)
    record["address"] = [array.ctypes.data for array in arrays.values()]
    return Engine(record, arrays)


def _make_idle(record: np.ndarray, arrays: EngineArrays) -> None:
    """Empty queues; every block free, in the order of its number, around sentinel 0."""
    ids = np.arange(record["n_block_ids"][0], dtype=np.int32)
    arrays["next_free"][:] = np.roll(ids, -1)
    arrays["previous_free"][:] = np.roll(ids, 1)
    arrays["block_key"][:] = -1
    arrays["slot_stack"][:] = np.arange(record["slots"][0])
    for name in ("waiting", "input"):
        arrays[name]["head"] = arrays[name]["tail"] = -1
    arrays["replicas"]["chunked"] = -1
    arrays["replicas"]["expected"] = record["admission_share"]
    arrays["replicas"]["free_blocks"] = record["blocks"]
    arrays["replicas"]["free_slots"] = record["slots"]
    arrays["groups"]["wake_s"] = np.inf
