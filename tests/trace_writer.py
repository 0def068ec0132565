"""Writes traces.json as the instrumented vLLM does, from a run whose truth is known."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthetic_engine import EngineRun, EngineStep, Moment

_NS = 1_000_000_000


@dataclass(frozen=True)
class WriterOptions:
    """How a run is written.

    Attributes:
        step_sampling: Share of steps whose summary is written.
        snapshot_sampling: Share of those whose requests are written too.
        journey_sampling: Share of requests that are written.
        seed: Seed of the draws and ids.
        monotonic_ns: The host's clock at the engine's second 0.
        epoch_ns: Epoch time at the same moment.
        first_step: The engine's first step number; step numbers of earlier work are below.
        service: Resource attributes of the server.
        http_s: From arrival to the queue beyond what the engine makes a request wait, and again
            from its last token to the end of the response.
        schedule_s: Duration of the scheduler's call, which the wire calls the step's duration.
        output_lag_steps: How many steps later the outputs of a step are handled: its FIRST_TOKEN
            and FINISHED events then carry a later step number.
    """

    step_sampling: float = 0.1
    snapshot_sampling: float = 0.0
    journey_sampling: float = 1.0
    seed: int = 0
    monotonic_ns: int = 8_123_461_900_000
    epoch_ns: int = 1_771_343_000_000_000_000
    first_step: int = 1
    service: tuple[tuple[str, str], ...] = (("service.name", "vllm"),)
    http_s: float = 2e-3
    schedule_s: float = 3e-4
    output_lag_steps: int = 0


def write_traces(run: EngineRun, path: Path, options: WriterOptions | None = None) -> int:
    """Write a run; the number of lines written."""
    lines = list(trace_lines(run, options or WriterOptions()))
    path.write_text("".join(line + "\n" for line in lines))
    return len(lines)


def trace_lines(run: EngineRun, options: WriterOptions, spans_per_line: int = 32) -> Iterator[str]:
    """The lines: spans in order of their end, some of each scope on a line."""
    pen = _Pen(run, options)
    spans = sorted([*pen.step_spans(), *pen.request_spans()], key=lambda s: s[0])
    for begin in range(0, len(spans), spans_per_line):
        scopes: dict[str, list] = {}
        for _, scope, span in spans[begin : begin + spans_per_line]:
            scopes.setdefault(scope, []).append(span)
        line = {
            "resourceSpans": [
                {
                    "resource": {"attributes": [_attribute(k, v) for k, v in options.service]},
                    "scopeSpans": [
                        {"scope": {"name": name}, "spans": part} for name, part in scopes.items()
                    ],
                }
            ]
        }
        yield json.dumps(line, separators=(",", ":"))


class _Pen:
    def __init__(self, run: EngineRun, options: WriterOptions) -> None:
        self.run = run
        self.options = options
        self.draw = random.Random(options.seed)
        self.names = [f"cmpl-{self._id(8)}" for _ in run.arrivals]

    def _id(self, characters: int) -> str:
        return f"{self.draw.getrandbits(4 * characters):0{characters}x}"

    def _monotonic(self, seconds: float) -> int:
        return self.options.monotonic_ns + round(seconds * _NS)

    def _epoch(self, seconds: float) -> int:
        return self.options.epoch_ns + round(seconds * _NS)

    def _step_number(self, step: int) -> int:
        return step + self.options.first_step

    def step_spans(self) -> Iterator[tuple[int, str, dict]]:
        """``scheduler_steps_<n>``: a span every two seconds, around the sampled steps of them."""
        gathered: dict[int, list[dict]] = {}
        for step in self.run.steps:
            if self.draw.random() >= self.options.step_sampling:
                continue
            events = gathered.setdefault(int(step.start_s // 2), [])
            if self.draw.random() < self.options.snapshot_sampling:
                events.extend(self._snapshots(step))
            events.append(self._summary(step))
        for number, events in gathered.items():
            begin, end = self._epoch(2.0 * number), self._epoch(2.0 * number + 2)
            span = self._span(f"scheduler_steps_{number}", 1, begin, end, [], events)
            yield end, "vllm.scheduler.step", span

    def _summary(self, step: EngineStep) -> dict:
        prefills = [p for p in step.parts if p.is_prefill]
        tokens = sum(p.new_tokens for p in step.parts)
        in_prefill = sum(p.new_tokens for p in prefills)
        start = self._monotonic(step.start_s)
        call_ns = round(self.options.schedule_s * _NS)
        values = {
            "step.id": self._step_number(step.step_id),
            "step.ts_start_ns": start,
            "step.ts_end_ns": start + call_ns,
            "step.duration_us": call_ns // 1000,
            "queue.running_depth": len(step.parts),
            "queue.waiting_depth": step.waiting,
            "batch.num_prefill_reqs": len(prefills),
            "batch.num_decode_reqs": len(step.parts) - len(prefills),
            "batch.scheduled_tokens": tokens,
            "batch.prefill_tokens": in_prefill,
            "batch.decode_tokens": tokens - in_prefill,
            "batch.num_finished": step.finished,
            "batch.num_preempted": step.preempted,
            "kv.usage_gpu_ratio": step.blocks_used / self.run.blocks,
            "kv.blocks_total_gpu": self.run.blocks,
            "kv.blocks_free_gpu": self.run.blocks - step.blocks_used,
        }
        return self._event("step.BATCH_SUMMARY", step.start_s + self.options.schedule_s, values)

    def _snapshots(self, step: EngineStep) -> Iterator[dict]:
        for part in step.parts:
            arrival = self.run.arrivals[part.request]
            values = {
                "step.id": self._step_number(step.step_id),
                "request.id": f"{self.names[part.request]}-0-9f3c",
                "request.phase": "PREFILL" if part.is_prefill else "DECODE",
                "request.num_prompt_tokens": arrival.prompt_tokens,
                "request.num_computed_tokens": part.cached_tokens,
                "request.num_output_tokens": part.output_tokens,
                "request.num_preemptions": 0,
                "request.scheduled_tokens_this_step": part.new_tokens,
                "kv.blocks_allocated_gpu": -(-part.cached_tokens // self.run.block_size),
                "kv.blocks_cached_gpu": arrival.cached_tokens // self.run.block_size,
            }
            yield self._event("step.REQUEST_SNAPSHOT", step.start_s, values)

    def request_spans(self) -> Iterator[tuple[int, str, dict]]:
        """``llm_request`` and its child ``llm_core`` for each sampled request that ended."""
        for request, (arrival, moments) in enumerate(
            zip(self.run.arrivals, self.run.moments, strict=True)
        ):
            if self.draw.random() >= self.options.journey_sampling:
                continue
            parent, trace = self._id(16), self._id(32)
            begin, end = arrival.time_s, moments[-1].time_s + self.options.http_s
            name = self.names[request]
            core = self._span(
                "llm_core", 1, self._epoch(begin), self._epoch(end),
                [_attribute("gen_ai.request.id", f"{name}-0-9f3c")],
                [self._journey_event(m, arrival.output_tokens) for m in moments],
            )  # fmt: skip
            yield self._epoch(end) - 1, "vllm.scheduler", {
                **core, "traceId": trace, "parentSpanId": parent
            }  # fmt: skip
            attributes = {
                "gen_ai.request.id": name,
                "http.route": "/v1/completions",
                "gen_ai.response.model": "model",
                "gen_ai.usage.prompt_tokens": arrival.prompt_tokens,
                "gen_ai.usage.completion_tokens": arrival.output_tokens,
                "gen_ai.request.max_tokens": arrival.output_tokens,
            }
            # The request was sent earlier than the engine saw it.
            sent = begin - self.options.http_s
            front = self._span(
                "llm_request", 2, self._epoch(sent), self._epoch(end),
                [_attribute(k, v) for k, v in attributes.items()],
                [self._api_event("ARRIVED", sent), self._api_event("DEPARTED", end)],
            )  # fmt: skip
            yield self._epoch(end), "vllm.api", {**front, "traceId": trace, "spanId": parent}

    def _journey_event(self, moment: Moment, output_tokens: int) -> dict:
        is_output = moment.label in ("FIRST_TOKEN", "FINISHED")
        step = moment.step + (self.options.output_lag_steps if is_output else 0)
        is_decoding = moment.decode_done > 0 or is_output
        values: dict[str, Any] = {
            "event.type": moment.label,
            "ts.monotonic": self._monotonic(moment.time_s) / _NS,
            "ts.monotonic_ns": self._monotonic(moment.time_s),
            "scheduler.step": self._step_number(step),
            "phase": "WAITING"
            if moment.label == "QUEUED"
            else "DECODE"
            if is_decoding
            else "PREFILL",
            "prefill.done_tokens": moment.prefill_done,
            "prefill.total_tokens": moment.prefill_total,
            "decode.done_tokens": moment.decode_done,
            "decode.max_tokens": output_tokens,
            "num_preemptions": moment.preemptions,
        }
        if moment.label == "SCHEDULED":
            values["schedule.kind"] = "RESUME" if moment.preemptions else "FIRST"
        if moment.label == "FINISHED":
            values["finish.status"] = "length"
        return self._event(f"journey.{moment.label}", moment.time_s, values)

    def _api_event(self, label: str, time_s: float) -> dict:
        seconds = self._monotonic(time_s) / _NS
        return self._event(
            f"api.{label}", time_s, {"event.type": label, "event.ts.monotonic": seconds}
        )

    def _event(self, name: str, time_s: float, values: dict[str, Any]) -> dict:
        return {
            "timeUnixNano": str(self._epoch(time_s)),
            "name": name,
            "attributes": [_attribute(k, v) for k, v in values.items()],
        }

    def _span(
        self, name: str, kind: int, begin: int, end: int, attributes: list, events: Iterable[dict]
    ) -> dict:
        return {
            "traceId": self._id(32),
            "spanId": self._id(16),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(begin),
            "endTimeUnixNano": str(end),
            "attributes": attributes,
            "events": list(events),
            "status": {},
        }


def _attribute(key: str, value: Any) -> dict:
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    if isinstance(value, float):
        return {"key": key, "value": {"doubleValue": value}}
    return {"key": key, "value": {"stringValue": value}}
