"""Reads kv_events.jsonl: what happened to blocks of the KV cache.

A line is ``[time, [events], dp_rank, scheduler_step]``, an event its name and positional values;
arrays may be short. The step of a line is never set; that of an event is used. Transfer events can
appear twice. Block hashes and token ids are counted, not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from pinn.common.files import ReadReport
from pinn.server.readers.lines import check_file, read_stretch, stretches

KV_SCHEMA = pa.schema(
    {
        "wall_s": pa.float64(),
        "dp_rank": pa.int32(),
        "event": pa.string(),
        "request_id": pa.string(),
        "transfer_id": pa.string(),
        "medium": pa.string(),
        "source": pa.string(),
        "destination": pa.string(),
        "blocks": pa.int64(),
        "tokens": pa.int64(),
        "block_size": pa.int32(),
        "step": pa.int64(),
        "reason": pa.string(),
        "is_success": pa.bool_(),
    }
)

_TRANSFER = ("transfer_id", "request_id", "source", "destination", "blocks")
_REMOTE = ("transfer_id", "request_id", "medium", "source", "destination", "blocks")
_COMMIT = ("request_id", "medium", "blocks", "step")

#: Event -> what its positions hold; ``hashes`` and ``token_ids`` are counted, "" is not kept.
POSITIONS: dict[str, tuple[str, ...]] = {
    "BlockStored": ("hashes", "", "token_ids", "block_size", "", "medium", ""),
    "BlockRemoved": ("hashes", "medium"),
    "AllBlocksCleared": (),
    "TransferInitiated": (*_TRANSFER, "step"),
    "TransferCompleted": (*_TRANSFER, "is_success", "step"),
    "RemoteTransferInitiated": _REMOTE,
    "RemoteTransferCompleted": (*_REMOTE, "is_success"),
    "CacheLoadCommitted": _COMMIT,
    "CacheStoreCommitted": _COMMIT,
    "CacheEviction": ("medium", "blocks", "reason", "step", "hashes"),
}

_COUNTED = {"hashes": "blocks", "token_ids": "tokens"}


@dataclass
class KvEvents:
    """What a file held.

    Attributes:
        table: The events, in order of the file.
        lines: Counts of its lines.
        events: Counts of their events.
    """

    table: pa.Table
    lines: ReadReport
    events: ReadReport


def read_kv_events(path: Path) -> KvEvents:
    """Read a file of KV cache events.

    Raises:
        PinnError: If there is no such file, or it is sparse.
    """
    check_file(path, "give the path of kv_events.jsonl")
    reader = _Reader()
    batches = []
    for start, end in stretches(path.stat().st_size):
        stretch = read_stretch(path, start, end)
        rows = list(reader.rows(stretch.lines, stretch.last_is_cut))
        reader.count_too_long(stretch.too_long)
        batches.append(pa.RecordBatch.from_pylist(rows, schema=KV_SCHEMA))
    table = pa.Table.from_batches(batches, schema=KV_SCHEMA)
    return KvEvents(table, reader.report(path.name, "lines"), reader.report(path.name, "events"))


class _Reader:
    def __init__(self) -> None:
        self._read: Counter[str] = Counter()
        self._refused: dict[str, Counter[str]] = {"lines": Counter(), "events": Counter()}
        self._transfers: set[tuple] = set()

    def report(self, source: str, level: str) -> ReadReport:
        refused = dict(self._refused[level].most_common())
        read = self._read[level]
        accepted = read - sum(refused.values())
        return ReadReport(f"{source} {level}", "", "", read, accepted, refused)

    def count_too_long(self, lines: int) -> None:
        self._read["lines"] += lines
        if lines:
            self._refused["lines"]["line too long"] += lines

    def rows(self, lines: list[bytes], last_is_cut: bool) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines):
            self._read["lines"] += 1
            refused = self._refused["lines"]
            if not line.strip():
                refused["blank line"] += 1
                continue
            try:
                batch = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                is_cut = last_is_cut and number == len(lines) - 1
                refused["truncated last line" if is_cut else "invalid JSON"] += 1
                continue
            if not _is_batch(batch):
                refused["not a batch of [time, [events], ...]"] += 1
                continue
            rank = batch[2] if len(batch) > 2 and _is_int(batch[2]) else None
            for event in batch[1]:
                self._read["events"] += 1
                try:
                    yield self._row(event, float(batch[0]), rank)
                except ValueError as error:
                    self._refused["events"][str(error)] += 1

    def _row(self, event: Any, wall_s: float, rank: int | None) -> dict[str, Any]:
        name, values = _named_values(event)
        row: dict[str, Any] = {"wall_s": wall_s, "dp_rank": rank, "event": name}
        for key, value in zip(POSITIONS[name], values, strict=False):
            if key in _COUNTED and value is not None:
                if not isinstance(value, list):
                    raise ValueError(f"{name} with bad {key}")
                row.setdefault(_COUNTED[key], len(value))
            elif key and key not in _COUNTED and value is not None:
                row[key] = _checked(name, key, value)
        if "Transfer" in name:
            identity = (name, *(row.get(k) for k in _REMOTE))
            if identity in self._transfers:
                raise ValueError(f"{name} written twice")
            self._transfers.add(identity)
        return row


def _is_int(value: Any, limit: int = 2**31) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < limit


def _is_batch(batch: Any) -> bool:
    return (
        isinstance(batch, list)
        and len(batch) >= 2
        and isinstance(batch[0], (int, float))
        and not isinstance(batch[0], bool)
        and isinstance(batch[1], list)
    )


def _named_values(event: Any) -> tuple[str, list]:
    """Name and positional values; an object with a ``type`` is accepted too."""
    if isinstance(event, dict) and isinstance(event.get("type"), str):
        name = event["type"]
        named = {
            "block_hashes": "hashes",
            **{k: k for k in KV_SCHEMA.names},
            "token_ids": "token_ids",
        }
        found = {named[k]: v for k, v in event.items() if k in named}
        event = [name, *(found.get(key) for key in POSITIONS.get(name, ()))]
    if not isinstance(event, list) or not event or not isinstance(event[0], str):
        raise ValueError("event without a name")
    if event[0] not in POSITIONS:
        raise ValueError(f"unknown event {event[0][:60]!r}")
    return event[0], event[1:]


def _checked(name: str, key: str, value: Any) -> Any:
    """The value as its column holds it."""
    kind = KV_SCHEMA.field(key).type
    if pa.types.is_string(kind):
        if isinstance(value, (str, int)):
            return str(value)
    elif pa.types.is_boolean(kind):
        if isinstance(value, bool):
            return value
    elif _is_int(value, 2**62 if key == "step" else 2**31):
        return value
    raise ValueError(f"{name} with bad {key}")


def transfer_rates(events: pa.Table, block_bytes: float | None = None) -> pa.Table:
    """Transfers from their beginning to their end.

    Args:
        events: The table of events.
        block_bytes: Bytes of one KV block on all GPUs; None leaves the rate null.

    Returns:
        Columns ``transfer_id``, ``request_id``, ``source``, ``destination``, ``blocks``,
        ``seconds`` and ``bytes_per_s`` of each transfer of which both ends are there. Events carry
        the time at which their batch was sent, so short transfers are coarse and 0 s has no rate.
    """
    begun: dict[tuple, dict] = {}
    rows = []
    for event in events.to_pylist():
        name = event["event"]
        key = (name.startswith("Remote"), event["transfer_id"], event["request_id"])
        if name.endswith("TransferInitiated"):
            begun[key] = event
        elif (
            name.endswith("TransferCompleted") and key in begun and event["is_success"] is not False
        ):
            first = begun.pop(key)
            blocks = event["blocks"] if event["blocks"] is not None else first["blocks"]
            seconds = event["wall_s"] - first["wall_s"]
            rate = None
            if block_bytes is not None and blocks is not None and seconds > 0:
                rate = blocks * block_bytes / seconds
            rows.append(
                {k: first[k] for k in ("transfer_id", "request_id", "source", "destination")}
                | {"blocks": blocks, "seconds": seconds, "bytes_per_s": rate}
            )
    schema = pa.schema(
        {
            **{k: pa.string() for k in ("transfer_id", "request_id", "source", "destination")},
            "blocks": pa.int64(),
            "seconds": pa.float64(),
            "bytes_per_s": pa.float64(),
        }
    )
    return pa.Table.from_pylist(rows, schema=schema)
