"""Request spans of stock vLLM (``--otlp-traces-endpoint``): OTLP-JSON, one export a line.

Each span ``llm_request`` carries its request's tokens and latencies as attributes
(``vllm/tracing.py: SpanAttributes``); nothing is known of steps. TTFT and E2E begin at the engine's
arrival time. Arrivals are the starts of the spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinn.data.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, StatedServer
from pinn.data.benchmarks.documents import Document
from pinn.data.benchmarks.figures import request_figures
from pinn.data.benchmarks.given_load import GivenLoad, NotUsable

TOOL = "request spans of vLLM"

_NANOSECOND = 1e-9
_SPAN = "llm_request"
#: Attribute -> what it is here.
_ATTRIBUTES = {
    "gen_ai.latency.time_to_first_token": "ttft",
    "gen_ai.latency.e2e": "e2e",
    "gen_ai.usage.prompt_tokens": "prompt",
    "gen_ai.usage.completion_tokens": "output",
    "gen_ai.response.model": "model",
}
_NEEDED = {"ttft", "e2e", "prompt", "output"}


def is_request_spans(document: Document) -> bool:
    """Whether it holds request spans with latencies and no events of an instrumented engine."""
    return "resourceSpans" in document.first and any(
        span.keys() >= _NEEDED for span in _spans(document)
    )


def request_span_points(document: Document) -> list[Any]:
    """One run a file."""
    return [list(_spans(document))]


def read_request_spans(spans: list[dict[str, Any]], name: str, given: GivenLoad) -> BenchmarkRun:
    """The requests of a file as one run.

    Raises:
        NotUsable: If no span is complete, or two models served them.
    """
    whole = [s for s in spans if s.keys() >= _NEEDED and s["output"] >= 1 and s["e2e"] > 0]
    if not whole:
        raise NotUsable("no request span with tokens and latencies")
    models = {str(s["model"]) for s in whole if s.get("model")}
    if len(models) > 1:
        raise NotUsable(f"spans of {len(models)} models: {', '.join(sorted(models))}")
    whole.sort(key=lambda s: s["start_ns"])
    begin = whole[0]["start_ns"]
    assumed = ["latencies begin when the server's engine has the request"]
    closed = given.concurrency is not None
    offsets = tuple((s["start_ns"] - begin) * _NANOSECOND for s in whole)
    load = Load(
        len(whole),
        Lengths.listed(tuple(max(int(s["prompt"]), 1) for s in whole)),
        Lengths.listed(tuple(int(s["output"]) for s in whole)),
        given.concurrency,
        given.request_rate,
        offsets_s=() if closed else offsets,
        prefix=given.prefix(assumed),
    )
    columns = ([s[key] for s in whole] for key in ("ttft", "e2e", "output"))
    server = StatedServer(next(iter(models), ""), engine="vllm")
    return BenchmarkRun(
        name, TOOL, load, request_figures(*columns), len(whole), len(spans) - len(whole), server,
        tuple(assumed),
    )  # fmt: skip


def _spans(document: Document) -> Iterator[dict[str, Any]]:
    for export in document.values:
        for resource in export.get("resourceSpans") or []:
            for scope in resource.get("scopeSpans") or []:
                for span in scope.get("spans") or []:
                    if span.get("name") == _SPAN and not span.get("events"):
                        yield _facts(span)


def _facts(span: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"start_ns": int(span.get("startTimeUnixNano") or 0)}
    for attribute in span.get("attributes") or []:
        key = _ATTRIBUTES.get(str(attribute.get("key")))
        if key:
            ((kind, value),) = attribute["value"].items()
            found[key] = value if kind == "stringValue" else float(value)
    return found
