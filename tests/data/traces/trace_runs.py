"""Runs and lines that the trace tests share."""

import json
import random
from functools import cache
from pathlib import Path

from synthetic_engine import Arrival, EngineLimits, EngineRun, run_engine
from trace_writer import WriterOptions, trace_lines

from pinn.measurements.readers.vllm import RawRun, read_vllm
from pinn.specs.batch import Batch

#: Step, request, token and cached-token seconds of the engine in the tests.
TRUE_COEFFICIENTS = (8e-3, 2e-5, 1e-6, 5e-9)


def true_step_seconds(batch: Batch) -> float:
    step, request, token, cached = TRUE_COEFFICIENTS
    return (
        step
        + request * len(batch)
        + token * sum(batch.new_tokens)
        + cached * sum(batch.cached_tokens)
    )


@cache
def engine_run(requests: int = 150, rate_per_s: float = 25.0, blocks: int = 20_000) -> EngineRun:
    """Open-loop load on one server, a third of the prompts partly cached."""
    draw, now, arrivals = random.Random(1), 0.0, []
    for _ in range(requests):
        now += draw.expovariate(rate_per_s)
        arrivals.append(
            Arrival(now, draw.randint(100, 900), draw.randint(20, 80), draw.choice([0, 16, 96]))
        )
    return run_engine(arrivals, true_step_seconds, EngineLimits(blocks=blocks))


def lines_of(run: EngineRun, **options: object) -> list[str]:
    return list(trace_lines(run, WriterOptions(**options)))  # type: ignore[arg-type]


def read_lines(folder: Path, lines: list[str | bytes], **options: int) -> RawRun:
    """Read lines as a file; the last one keeps its end only if it is text."""
    path = folder / "traces.json"
    parts = [line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines]
    path.write_bytes(b"".join(parts))
    return read_vllm(path, folder / "raw", **options)


def export(*spans: dict, scope: str = "vllm.scheduler", service: str = "vllm") -> str:
    """A line with the given spans."""
    resource = {"attributes": [attribute("service.name", service)]}
    scopes = [{"scope": {"name": scope}, "spans": list(spans)}]
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]})


def attribute(key: str, value: object) -> dict:
    kind = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    text = str(value) if type(value) is int else value
    return {"key": key, "value": {kind[type(value)]: text}}


def event(name: str, time_ns: int = 1_771_343_000_000_000_000, **attributes: object) -> dict:
    """An event; double underscores in attribute names stand for dots."""
    named = [attribute(key.replace("__", "."), value) for key, value in attributes.items()]
    return {"timeUnixNano": str(time_ns), "name": name, "attributes": named}


def span(name: str, *events: dict, number: int = 1, parent: int = 0, **attributes: object) -> dict:
    named = [attribute(key.replace("__", "."), value) for key, value in attributes.items()]
    return {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        **({"parentSpanId": f"{parent:016x}"} if parent else {}),
        "name": name,
        "attributes": named,
        "events": list(events),
    }


def summary(step_id: int, start_ns: int, **more: object) -> dict:
    """A step of four decodes; its epoch time goes with its start."""
    values = {
        "step__id": step_id,
        "step__ts_start_ns": start_ns,
        "step__duration_us": 300,
        "queue__running_depth": 4,
        "queue__waiting_depth": 0,
        "batch__num_prefill_reqs": 0,
        "batch__num_decode_reqs": 4,
        "batch__prefill_tokens": 0,
        "batch__decode_tokens": 4,
        "batch__num_finished": 0,
        "batch__num_preempted": 0,
        "kv__blocks_total_gpu": 1000,
        "kv__usage_gpu_ratio": 0.1,
    }
    return event("step.BATCH_SUMMARY", 1_771_343_000_000_000_000 + start_ns, **{**values, **more})
