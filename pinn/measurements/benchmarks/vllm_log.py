"""Readers of benchmark data written by vLLM itself: its log, and traces with request spans."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from pinn.common.documents import MOST_LINE_BYTES
from pinn.common.files import ReadReport, file_sha256
from pinn.errors import PinnError
from pinn.measurements.benchmarks import marks
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, StatedServer
from pinn.measurements.benchmarks.documents import Document, NotUsable, kept, request_figures
from pinn.measurements.benchmarks.reading import Reading
from pinn.measurements.benchmarks.tree import Tree
from pinn.measurements.readers.vllm import check_file
from pinn.measurements.schemas import SCHEMAS
from pinn.memory.startup_lines import VLLM_KV_TOKENS
from pinn.specs.flags import FlagValue, given_flags
from pinn.specs.serving import ServingSpec
from pinn.units import MILLISECOND, NANOSECOND

# Lines of stock vLLM with ``--enable-logging-iteration-details``.
#
# A line states an iteration's number, its context (prefill) and generation (decode) requests and
# tokens, and its elapsed time: ``Iteration(12): 1 context requests, 512 context tokens, 32
# generation requests, 32 generation tokens, iteration elapsed time: 15.20 ms``. The elapsed time
# covers the model's execution in one step, not the busy-loop cycle.

# Patterns accept no more digits than an integer column can store.
_MARK = re.compile(r"\bIteration\s*\(\s*(-?\d{1,15})\s*\)", re.IGNORECASE)
_COUNTS = {
    f"{phase}_{what}": re.compile(rf"\b(\d{{1,15}})\s+{word}\s+{what}?\b", re.IGNORECASE)
    for phase, word in (("prefill", "context"), ("decode", "generation"))
    for what in ("requests", "tokens")
}

#: Pattern of the date and time at the start of a line, without a year: ``INFO 02-18 15:03:04
#: [core.py:77]``.
_LOGGED = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_ELAPSED = re.compile(r"elapsed(?:\s+time)?\s*[:=]?\s*([\d.]+)\s*ms", re.IGNORECASE)


def read_iteration_log(path: Path) -> tuple[pa.Table, ReadReport]:
    """Read the iteration details in a log file; other lines are counted as rejected.

    Returns:
        Table with one row per iteration, and the counts of lines read and rejected. A row has the
        iteration's number, requests and tokens, ``elapsed_s``, and ``logged_s``, the log time in
        whole seconds since an arbitrary day.

    Raises:
        PinnError: If the file is missing or sparse, or has no line with iteration details.
    """
    check_file(path, "give the file with vLLM's log")
    rows, refused, read = [], Counter[str](), 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in iter(partial(file.readline, MOST_LINE_BYTES), ""):
            read += 1
            mark = _MARK.search(line)
            if mark is None:
                refused["no iteration details"] += 1
                continue
            row = "idle step of a data-parallel rank" if "(dummy)" in line else _row(mark[1], line)
            if isinstance(row, str):
                refused[row] += 1
            else:
                rows.append(row)
    if not rows:
        raise PinnError(
            f"{path}: none of its {read} lines has details of an iteration: start vLLM with "
            "--enable-logging-iteration-details"
        )
    report = ReadReport(path.name, "", file_sha256(path), read, len(rows), dict(refused))
    return pa.Table.from_pylist(rows, schema=SCHEMAS["iterations"]), report


def _row(number: str, line: str) -> dict[str, float | None] | str:
    """Return a log line's iteration by column, or the reason why the line is rejected."""
    row: dict[str, float | None] = {"step_id": int(number), "logged_s": _logged_s(line)}
    for name, pattern in _COUNTS.items():
        found = pattern.search(line)
        if found is None:
            return f"iteration without {name.replace('_', ' ')}"
        row[name] = int(found[1])
    elapsed = _ELAPSED.search(line)
    with suppress(ValueError):
        row["elapsed_s"] = float(elapsed[1]) * MILLISECOND if elapsed else None
    return row if row.get("elapsed_s") else "iteration without elapsed time"


def _logged_s(line: str) -> float | None:
    """Return a log line's time in seconds; every month has 31 days, as only differences matter."""
    found = _LOGGED.search(line)
    if found is None:
        return None
    month, day, hour, minute, second = map(int, found.groups())
    return float((((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second)


# vLLM's log with ``--enable-logging-iteration-details``: batches, and the flags at the start.
#
# A line's elapsed time is the wait for the step's result. With asynchronous scheduling (the default
# from 0.14 on), this wait is neither the model's execution time nor the cycle from one step to the
# next. In a long log, the cycle is computed from the lines' timestamps, which are whole seconds.

_ITERATION = re.compile(r"\bIteration\s*\(\s*\d+\s*\)")
_ARGS = re.compile(r"non-default args: (\{.*\})")
_CONFIG = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)")

#: Minimum time in seconds between a log's first and last line for computing the cycle time from the
#: lines' timestamps. The value is an assumption: each end is uncertain by one second, which is 5 %
#: of 20 s.
_MIN_SPAN_S = 20.0


#: Pattern that identifies a vLLM log with iteration details.
is_vllm_log = marks.pattern("lines 'Iteration(N)'", _ITERATION)


def read_vllm_log(log: Document, reading: Reading) -> BenchmarkRun:
    """Read the load and the mean ITL of a server from its log as a benchmark run.

    The number of requests is the number of prompts in the log. If a step uses the full token
    budget, its last prompt is assumed to continue in the next step. Prompt tokens exclude those in
    the prefix cache.

    Raises:
        NotUsable: If the log has no prompt or no token.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    table = read_iteration_log(log.path)[0].to_pandas()
    server = log_server(log.text)
    busy = table[(table["prefill_requests"] + table["decode_requests"]) > 0]
    tokens = (busy["prefill_tokens"] + busy["decode_tokens"]).to_numpy()
    budget = float(server.flags.get("max_num_batched_tokens") or 8192)
    prefills = busy["prefill_requests"].to_numpy()
    full = np.concatenate([[False], tokens[:-1] >= budget]) & (prefills > 0)
    requests = int(prefills.sum() - full.sum())
    decoded = int(busy["decode_tokens"].sum())
    if requests < 1 or decoded < 1:
        raise NotUsable("the log has no complete prompt or no output token")
    given = reading.given
    concurrency = given.concurrency
    if given.request_rate is None and concurrency is None:
        concurrency = int((busy["prefill_requests"] + busy["decode_requests"]).max())
        reading.assumed.append(f"a closed loop of {concurrency} requests, the largest batch in "
                               f"the log (--concurrency, --request-rate)")  # fmt: skip
    prompt = reading.needed("prompt_tokens", busy["prefill_tokens"].sum() / requests)
    output = reading.needed("output_tokens", 1 + decoded / requests)
    sides = reading.lengths(prompt), reading.lengths(output)
    load = Load(requests, *sides, concurrency, given.request_rate, prefix=reading.prefix())
    figures = {"itl_mean_s": _gap_s(busy, reading.assumed)}
    return reading.run(load, kept(figures), requests, server=server)


def _gap_s(busy: pd.DataFrame, assumed: list[str]) -> float:
    """Return the mean ITL of a log in seconds, as the mean time between steps."""
    decodes = busy["decode_requests"].to_numpy(float)
    logged = busy["logged_s"].to_numpy(float)
    span = np.nanmax(logged) - np.nanmin(logged) if np.isfinite(logged).any() else 0.0
    if span < _MIN_SPAN_S:
        assumed.append(
            "the logged time of an iteration is taken as the time to the next iteration; with "
            "asynchronous scheduling, that time is too short"
        )
        return float(decodes @ busy["elapsed_s"].to_numpy(float) / decodes.sum())
    # Timestamps are whole seconds. Count only the steps between the first and the last change of
    # the second, because their total time is known: span - 1 seconds.
    inner = (logged > np.nanmin(logged)) & (logged < np.nanmax(logged))
    return float((span - 1) / inner.sum())


def log_server(text: str) -> StatedServer:
    """Return facts about the server (model, flags, KV cache) from the start of its log."""
    flags: dict[str, FlagValue] = {}
    model = engine = ""
    if config := _CONFIG.search(text):
        engine = f"vllm {config[1]}"
        pairs = dict(re.findall(r"(\w+)='?([^,'()]+)'?", config[2]))
        model = pairs.get("model", "")
        pairs["max_model_len"] = pairs.get("max_seq_len")
        odd = ("generation_config", "override_generation_config", "kv_cache_dtype")
        known = {k: v for k, v in pairs.items() if v not in (None, "None") and k not in odd}
        if str(pairs.get("kv_cache_dtype", "")).startswith("fp8"):
            known["kv_cache_dtype"] = "fp8"
        flags = given_flags(ServingSpec, known, "log")
    args = _ARGS.search(text)
    if args:
        try:
            named = ast.literal_eval(args[1])
        except (ValueError, SyntaxError):
            named = {}
        model = str(named.get("model") or named.get("model_tag") or model)
        flags |= given_flags(ServingSpec, named, "log")
    tokens = VLLM_KV_TOKENS.pattern.search(text)
    held = int(tokens[1].replace(",", "")) if tokens else None
    return StatedServer(model, "", flags, held, engine, "speculative_config" in (args or [""])[0])


# Request spans of stock vLLM (``--otlp-traces-endpoint``): OTLP-JSON, one export per line.
#
# Each span ``llm_request`` has its request's tokens and latencies as attributes (``vllm/tracing.py:
# SpanAttributes``), but no step data. TTFT and E2E are measured from the request's arrival at the
# engine. The start of the span is the request's arrival time.

_SPAN = "llm_request"
#: Names of a span's attributes in ``_RequestSpan.numbers``, by attribute.
_ATTRIBUTES = {
    "gen_ai.latency.time_to_first_token": "ttft",
    "gen_ai.latency.e2e": "e2e",
    "gen_ai.usage.prompt_tokens": "prompt",
    "gen_ai.usage.completion_tokens": "output",
    "gen_ai.response.model": "model",
}
_NEEDED = {"ttft", "e2e", "prompt", "output"}


def is_request_spans(document: Document) -> str:
    """Return the mark that identifies a file of request spans; an empty string for other files.

    Spans with events are excluded, because they come from an instrumented engine, which has its own
    reader.
    """
    is_own = "resourceSpans" in document.first and any(
        span.numbers.keys() >= _NEEDED for span in _spans(document)
    )
    return f"spans '{_SPAN}' with gen_ai.latency attributes" if is_own else ""


class _RequestSpan(NamedTuple):
    """Trace span of one request.

    Attributes:
        start_ns: Start time of the span in ns since the epoch.
        model: Name of the model; empty if the span has none.
        numbers: Number of tokens or latency in seconds, by name in ``_ATTRIBUTES``.
    """

    start_ns: int
    model: str
    numbers: dict[str, float]


def read_request_spans(document: Document, reading: Reading) -> BenchmarkRun:
    """Read all request spans of a file as one benchmark run.

    Raises:
        NotUsable: If no span is complete, or the file contains several models.
    """
    spans = list(_spans(document))
    whole = [s for s in spans if s.numbers.keys() >= _NEEDED]
    whole = [s for s in whole if s.numbers["output"] >= 1 and s.numbers["e2e"] > 0]
    if not whole:
        raise NotUsable("the file has no request span with tokens and latencies")
    models = {s.model for s in whole if s.model}
    if len(models) > 1:
        names = ", ".join(sorted(models))
        raise NotUsable(f"the file has spans of {len(models)} models, expected one ({names})")
    whole.sort(key=lambda s: s.start_ns)
    begin = whole[0].start_ns
    reading.assumed.append("latencies are measured from the arrival of a request at the engine")
    limit, rate = reading.given.concurrency, reading.given.request_rate
    offsets = tuple((s.start_ns - begin) * NANOSECOND for s in whole) if limit is None else ()
    prompt = Lengths.listed(tuple(max(int(s.numbers["prompt"]), 1) for s in whole))
    outputs = tuple(int(s.numbers["output"]) for s in whole)
    prefix = reading.prefix()
    lengths = prompt, Lengths.listed(outputs)
    load = Load(len(whole), *lengths, limit, rate, offsets_s=offsets, prefix=prefix)
    firsts, lasts = ([s.numbers[key] for s in whole] for key in ("ttft", "e2e"))
    figures = request_figures(firsts, lasts, outputs)
    server = StatedServer(next(iter(models), ""), engine="vllm")
    return reading.run(load, figures, len(whole), len(spans) - len(whole), server)


def _spans(document: Document) -> Iterator[_RequestSpan]:
    for export in document.trees:
        for resource in export.trees("resourceSpans"):
            for scope in resource.trees("scopeSpans"):
                for span in scope.trees("spans"):
                    if span.text("name") == _SPAN and not span.values.get("events"):
                        yield _facts(span)


def _facts(span: Tree) -> _RequestSpan:
    model, found = "", dict[str, float]()
    for attribute in span.trees("attributes"):
        key, value = _ATTRIBUTES.get(attribute.text("key")), attribute.at("value")
        if key == "model":
            model = value.text("stringValue")
        elif key and (number := value.number("intValue", "doubleValue")) is not None:
            found[key] = number
    return _RequestSpan(span.count("startTimeUnixNano"), model, found)
