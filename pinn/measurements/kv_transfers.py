"""KV transfers between GPU and host, from a server's KV events or metrics pages.

A file of KV events has one batch of events per line, in JSON: ``[seconds, [events], rank, step]``.
Each event is an array that begins with its name: ``TransferInitiated(id, request, from, to, blocks,
step)`` or ``TransferCompleted(id, request, from, to, blocks, success, step)``.
``CacheStoreCommitted`` means that a stored block can be read. Metrics pages contain the sums over
all transfers in each direction. Since vLLM 0.31 each direction has a series
(``vllm/distributed/kv_transfer/kv_connector/v1/offloading/metrics.py``). Earlier releases have one
series with the label ``transfer_type``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from pinn.common.documents import MOST_CSV_BYTES, read_text
from pinn.common.files import ReadReport, file_sha256
from pinn.errors import PinnError
from pinn.measurements.benchmarks.metrics_page import Page, read_page

_KIND = "KV events, or a metrics page"
#: Names of GPU memory in KV events.
_GPU = ("gpu", "device")
_BEGINS, _ENDS, _COMMITS = "TransferInitiated", "TransferCompleted", "CacheStoreCommitted"
#: Names of the series on a metrics page (bytes, seconds, number of transfers), by direction.
_SERIES = {
    way: (f"kv_offload_{way}_bytes_total", f"kv_offload_{way}_time_total",
          f"kv_offload_{way}_size_count")
    for way in ("load", "store")
}  # fmt: skip


@dataclass(frozen=True)
class KvTransfers:
    """Measured KV transfers; each entry is a transfer or the sum over several transfers.

    Attributes:
        count: Number of transfers in each entry.
        size: Size in blocks of the GPU's cache or, with ``in_bytes``, in bytes.
        seconds: Time that each entry occupies the link, in seconds.
        load: Whether each entry is a load (host to GPU) rather than a store (GPU to host).
        in_bytes: Whether sizes are in bytes.
        committed: Number of stores to host memory that can be read, according to KV events.
        report: Counts of events or pages read and rejected.
    """

    count: Float[np.ndarray, " transfers"]
    size: Float[np.ndarray, " transfers"]
    seconds: Float[np.ndarray, " transfers"]
    load: Bool[np.ndarray, " transfers"]
    in_bytes: bool
    committed: int
    report: ReadReport


def read_kv_transfers(paths: Sequence[Path]) -> KvTransfers:
    """Read a file of KV events, or metrics pages in scraping order.

    Raises:
        PinnError: If the files are neither KV events nor metrics pages, or contain no transfers.
    """
    texts = [read_text(path, MOST_CSV_BYTES, _KIND) for path in paths]
    pages = list(map(read_page, texts))
    if all(page.sums for page in pages):
        found = _of_pages(pages, paths)
    elif len(paths) == 1:
        found = _of_events(texts[0], paths[0])
    else:
        raise PinnError(
            f"{', '.join(map(str, paths))} have no KV transfer counters: give one file of KV "
            "events (JSON lines), or /metrics pages of one server"
        )
    if not len(found.size):
        raise PinnError(
            f"the file {paths[0]} has no finished transfer between GPU and host "
            f"memory:\n{found.report.table()}\nGive the KV events of a server that "
            "offloads KV blocks to host memory."
        )
    return found


def _report(path: Path, accepted: int, refused: Mapping[str, int]) -> ReadReport:
    kept = {reason: count for reason, count in refused.items() if count}
    return ReadReport(
        path.name, "", file_sha256(path), accepted + sum(kept.values()), accepted, kept
    )


# KV transfers from KV events.


@dataclass(frozen=True)
class _Transfer:
    """KV transfer between GPU and host memory, combined from its begin and end events."""

    begin_s: float
    end_s: float
    blocks: float
    load: bool


def _of_events(text: str, path: Path) -> KvTransfers:
    refused: Counter[str] = Counter()
    begun: dict[str, tuple[float, bool, float]] = {}
    ended: dict[str, _Transfer] = {}
    committed = failed = 0
    for line in filter(str.strip, text.splitlines()):
        for moment, event in _events(line, refused):
            name, key = event[0], str(event[1]) if len(event) > 1 else ""
            if name == _COMMITS:
                committed += 1
            elif name == _BEGINS and len(event) > 5:
                load = str(event[4]).lower() in _GPU
                begun.setdefault(key, (moment, load, float(event[5])))
            elif name == _ENDS and key in begun and key not in ended:
                if len(event) > 6 and not event[6]:
                    failed += 1
                    del begun[key]
                    continue
                begin_s, load, blocks = begun[key]
                ended[key] = _Transfer(begin_s, moment, blocks, load)
    refused["failed"] = failed
    refused["without an end"] = len(begun) - len(ended)
    kept = [each for each in ended.values() if each.blocks > 0 and each.end_s > each.begin_s]
    refused["transfers without blocks, or with an end before their start"] = len(ended) - len(kept)
    seconds = _on_the_link(kept)
    return KvTransfers(
        np.ones(len(kept)),
        np.array([each.blocks for each in kept], float),
        seconds,
        np.array([each.load for each in kept], bool),
        False,
        committed,
        _report(path, len(kept), refused),
    )


def _events(line: str, refused: Counter[str]) -> list[tuple[float, list[Any]]]:
    """Return the KV events of a line, each with its batch's time in seconds."""
    try:
        batch = json.loads(line)
        moment, events = float(batch[0]), batch[1]
        return [(moment, event) for event in events if isinstance(event, list) and event]
    except (ValueError, TypeError, IndexError, KeyError):
        refused["no batch of KV events"] += 1
        return []


def _on_the_link(transfers: Sequence[_Transfer]) -> Float[np.ndarray, " transfers"]:
    """Return the time in seconds that each of the consecutive transfers occupies the link."""
    seconds, free_s = np.zeros(len(transfers)), -np.inf
    for i in np.argsort([each.end_s for each in transfers], kind="stable"):
        each = transfers[i]
        seconds[i] = each.end_s - max(each.begin_s, free_s)
        free_s = each.end_s
    return seconds


# KV transfers from metrics pages.


def _of_pages(pages: Sequence[Page], paths: Sequence[Path]) -> KvTransfers:
    sums = list(map(_sums, pages))
    rows, refused = [], Counter[str]()
    for before, after in pairwise([dict.fromkeys(_SERIES, (0.0, 0.0, 0.0)), *sums]):
        for way in _SERIES:
            size, seconds, count = (a - b for a, b in zip(after[way], before[way], strict=True))
            if min(size, seconds, count) < 0:
                refused[
                    "a counter decreases, because the server was restarted between two scrapes"
                ] += 1
            elif not (count and seconds):
                refused[f"no {way} in between"] += 1
            else:
                rows.append((count, size, seconds, way == "load"))
    table = np.array(rows, float).reshape(-1, 4)
    counts, sizes, times, loads = table.T
    report = _report(paths[-1], len(rows), refused)
    return KvTransfers(counts, sizes, times, loads > 0, True, 0, report)


def _sums(page: Page) -> dict[str, tuple[float, float, float]]:
    """Return a metrics page's sums of bytes, seconds and transfers, by direction."""
    found = {}
    for way, names in _SERIES.items():
        label = {"load": "CPU_to_GPU", "store": "GPU_to_CPU"}[way]
        older = tuple(name.replace(f"_{way}_", "_total_" if "size" not in name else "_")
                      for name in names)  # fmt: skip
        one, two, three = (
            page.sums.get(new, page.labelled.get((old, label), 0.0))
            for new, old in zip(names, older, strict=True)
        )
        found[way] = (one, two, three)
    return found
