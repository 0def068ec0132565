"""The engine's state in flat arrays."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from jaxtyping import Shaped

from pinn.common.documents import MOST_ENGINE_BYTES, check_size
from pinn.simulator.arrays import ARRAYS, ENGINE, EngineArrays
from pinn.simulator.state import FIRST_SUM, STEP_COLUMNS

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
