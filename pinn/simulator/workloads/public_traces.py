"""Loads in public JSON formats: Mooncake's traces, and conversations as text.

Mooncake's traces (github.com/kvcache-ai/Mooncake, ``FAST25-release``, also read by ``sglang 0.5.23
sglang/benchmark/datasets/mooncake.py``) have one line per request with ``timestamp`` in
milliseconds, ``input_length``, ``output_length`` and ``hash_ids``. There is one hash per 512 tokens
of the prompt. Two hashes are equal if all tokens up to the end of their blocks are equal.

Conversations like ShareGPT's (``vllm 0.33.0 vllm/benchmarks/datasets``) are a JSON list, or one
line each. An entry has ``conversations`` with ``from`` and ``value``, or ``messages`` with ``role``
and ``content``.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pinn.common import Json
from pinn.common.documents import (
    MOST_LINE_BYTES,
    MOST_REQUEST_TOKENS,
    MOST_REQUESTS,
    check_size,
    is_finite,
)
from pinn.errors import PinnError
from pinn.simulator.workloads.workload import Reading, Workload
from pinn.units import MILLISECOND

#: Number of tokens that one of Mooncake's hashes covers.
_HASHED_TOKENS = 512
#: UTF-8 bytes per token, by OpenAI's rule of thumb of four English characters per token.
_TOKEN_BYTES = 4
_NOTE = f"Lengths are estimates: one token per {_TOKEN_BYTES} bytes of text"
#: Keys in an entry for its list of messages (``_LISTS``), and in a message for its role
#: (``_SPEAKERS``) and its text (``_TEXTS``). ``_MODELS`` are names of the model's role.
_LISTS, _SPEAKERS, _TEXTS = ("conversations", "messages", "conversation"), ("from", "role"), (
    "value", "content",
)  # fmt: skip
_MODELS = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})
_CHUNK_BYTES = 1 << 20


def read_json_load(path: Path, most: int | None = None) -> Workload:
    """Read the load of a JSON file of requests or conversations.

    Args:
        path: File with a JSON list, or with one entry per line.
        most: Maximum number of requests to read; None for all.

    Raises:
        PinnError: If the file's format is unknown, or none of its entries is a request.
    """
    entries = json_entries(path)
    first = next(entries, None)
    if isinstance(first, dict) and {"timestamp", "input_length"} <= set(first):
        return _read_mooncake(path, first, entries, most)
    if isinstance(first, dict) and any(key in first for key in _LISTS):
        return _read_conversations(path, first, entries, most)
    keys = ", ".join(map(str, first)) if isinstance(first, dict) else f"{first!r:.60}"
    raise PinnError(
        f"{path}: the format of the load is unknown: expected entries with timestamp, "
        f"input_length, output_length and hash_ids (Mooncake), or with {' or '.join(_LISTS)} of "
        f"messages (ShareGPT), got an entry with {keys or 'no keys'}"
    )


def json_entries(path: Path) -> Iterator[Json]:
    """Yield the entries of a JSON list, or of lines of JSON, without reading the whole file.

    Raises:
        PinnError: If the file cannot be read, or is not JSON.
    """
    decoder, text, at, number = json.JSONDecoder(), "", 0, 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            while True:
                at = _end_of_gap(text, at, at_begin=number == 0)
                if text[at : at + 1] == "]":
                    return
                try:
                    entry, end = decoder.raw_decode(text, at)
                except (json.JSONDecodeError, RecursionError):
                    end = -1
                if 0 < end < len(text) or (end > 0 and text[end - 1] in "}]"):
                    number, at = number + 1, end
                    yield entry
                    continue
                check_size(
                    len(text) - at,
                    MOST_LINE_BYTES,
                    f"{path}: the size of an entry in bytes",
                    "split the entry",
                )
                more = file.read(_CHUNK_BYTES)
                text, at = text[at:] + more, 0
                if not more and not text:
                    return
                if not more:
                    raise PinnError(
                        f"{path}: the JSON is malformed after {number:,} entries: correct the next "
                        "entry"
                    )
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else "it is no UTF-8 text"
        raise PinnError(f"{path}: cannot be read ({why}): give a readable JSON file") from error


def _end_of_gap(text: str, at: int, *, at_begin: bool) -> int:
    """Return the position in the text where the next JSON entry begins or the list ends."""
    while at < len(text) and (text[at] in " \t\r\n," or (at_begin and text[at] == "[")):
        at_begin = at_begin and text[at] != "["
        at += 1
    return at


def _read_mooncake(
    path: Path, first: dict[str, Any], entries: Iterator[Json], most: int | None
) -> Workload:
    """Read requests with their times; prompts share the blocks whose leading hashes are equal."""
    rows: list[tuple[float, int, int, list[int]]] = []
    refused: Counter[str] = Counter()
    for entry in _chain(first, entries):
        fault = _mooncake_fault(entry)
        if fault is not None:
            refused[fault] += 1
            continue
        if most is not None and len(rows) == most:
            break
        what = f"the number of requests in {path}"
        check_size(len(rows) + 1, MOST_REQUESTS, what, "give --num-prompts")
        moment = entry["timestamp"] * MILLISECOND
        rows.append(
            (moment, entry["input_length"], entry["output_length"], entry.get("hash_ids") or [])
        )
    reading = Reading(len(rows) + sum(refused.values()), dict(refused))
    if not rows:
        raise PinnError(f"{path} has no usable request: {reading}")
    rows.sort(key=lambda row: row[0])
    arrival, prompt, output = (np.array(column) for column in list(zip(*rows, strict=True))[:3])
    donor, shared = _share_hashes([row[3] for row in rows], prompt)
    return Workload(
        path.stem, prompt, output, arrival - arrival[0], shares_with=donor, shared_tokens=shared,
        reading=reading,
    )  # fmt: skip


def _chain(first: Json, entries: Iterator[Json]) -> Iterator[Any]:
    yield first
    yield from entries


def _mooncake_fault(entry: Any) -> str | None:
    """Return the reason why an entry of a Mooncake trace is not a request; None if it is one."""
    if not isinstance(entry, Mapping):
        return "no mapping"
    if not is_finite(entry.get("timestamp")) or entry["timestamp"] < 0:
        return "without timestamp"
    for name in ("input_length", "output_length"):
        tokens = entry.get(name)
        if isinstance(tokens, bool) or not isinstance(tokens, int):
            return f"without {name}"
        if not 1 <= tokens <= MOST_REQUEST_TOKENS:
            return f"with {name} below 1 or above {MOST_REQUEST_TOKENS:,}"
    ids = entry.get("hash_ids") or []
    if not isinstance(ids, list) or any(not isinstance(each, int) for each in ids):
        return "with hash_ids that are not numbers"
    return None


def _share_hashes(hashes: list[list[int]], prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the earlier request with which each prompt shares its longest prefix.

    Return the index of this earlier request, and the number of shared tokens, for each prompt. The
    request is -1 if no earlier prompt shares a prefix. Only whole hashed blocks are compared.
    """
    donor, shared = np.full((2, len(hashes)), -1, np.int64)
    known: dict[tuple[int, int], tuple[int, int]] = {}  # (parent node, hash) -> (node, request)
    for r, ids in enumerate(hashes):
        node, common = 0, 0
        for i, each in enumerate(ids):
            found = known.get((node, each))
            if found is None:
                found = known[node, each] = (len(known) + 1, r)
            elif found[1] < r:
                donor[r], common = found[1], i + 1
            node = found[0]
        shared[r] = min(common * _HASHED_TOKENS, prompt[r], prompt[donor[r]]) if common else 0
    return donor, shared


def _read_conversations(
    path: Path, first: dict[str, Any], entries: Iterator[Json], most: int | None
) -> Workload:
    """Read conversations without times; each turn waits for the previous response."""
    turns: list[tuple[int, int, int]] = []  # prompt tokens, output tokens, tokens of the history
    refused: Counter[str] = Counter()
    read = 0
    for entry in _chain(first, entries):
        if most is not None and len(turns) >= most:
            break
        read += 1
        found = _turns_of(entry)
        if isinstance(found, str):
            refused[found] += 1
            continue
        what = f"the number of requests in {path}"
        check_size(len(turns) + len(found), MOST_REQUESTS, what, "give --num-prompts")
        turns += found
    turns = turns[:most]
    reading = Reading(read, dict(refused), (_NOTE,))
    if not turns:
        raise PinnError(f"{path} has no usable conversation: {reading}")
    prompt, output, known = np.array(turns).T
    before = np.where(known == 0, -1, np.arange(len(turns)) - 1)
    return Workload(
        path.stem, prompt, output, np.zeros(len(turns)), follows=before, shares_with=before,
        shared_tokens=known, reading=reading, timed=False,
    )  # fmt: skip


def _turns_of(entry: Any) -> list[tuple[int, int, int]] | str:
    """Return the (prompt, output, history) tokens of each response in a conversation.

    The history is the previous prompt and response, which the prompt repeats. Return the reason as
    a string if there is no response.
    """
    messages = next((entry[k] for k in _LISTS if k in entry), None) if _is_map(entry) else None
    if not isinstance(messages, list) or not all(_is_map(each) for each in messages):
        return "without messages"
    found: list[tuple[int, int, int]] = []
    history = known = 0
    for message in messages:
        speaker = next((message[k] for k in _SPEAKERS if k in message), None)
        tokens = _tokens(next((message[k] for k in _TEXTS if k in message), None))
        if isinstance(speaker, str) and speaker in _MODELS and tokens > 0 and history > known:
            found.append((history, tokens, known))
            known = history + tokens
        history += tokens
    return found or "without a model's answer to a prompt"


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping)


def _tokens(text: object) -> int:
    """Estimate the number of tokens of a message from its text; other parts count as 0."""
    if isinstance(text, list):
        return sum(_tokens(part.get("text")) for part in text if isinstance(part, Mapping))
    return -(-len(text.encode(errors="replace")) // _TOKEN_BYTES) if isinstance(text, str) else 0
