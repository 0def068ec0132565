"""Runs in the engine's process as a plugin: writes what every step held and how long it took.

vLLM calls ``install`` by its entry point group ``vllm.general_plugins`` (vllm 0.32.0
``vllm/plugins/__init__.py: load_general_plugins``, which ``EngineCore.__init__`` calls before it
makes the scheduler). Methods of ``Scheduler`` are wrapped; no file of vLLM is changed and nothing
is decided differently.

A line of the file is an event, in the order in which the engine's loop came to it; seconds are of
the monotonic clock:

    {"add": id, "prompt": token ids, "output": most tokens, "at": s}
    {"step": [[id, new tokens, computed tokens], ...], "at": scheduled at s, "end": result at s}
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

#: Names the file to write to; without it nothing is recorded.
TARGET = "PINN_LIVE_RECORD"


def install() -> None:
    """Wrap the scheduler of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    if TARGET in os.environ and not hasattr(Scheduler, "is_recorded"):
        Scheduler.is_recorded = True
        record(Scheduler, Path(os.environ[TARGET]))


def record(scheduler: Any, target: Path) -> None:
    """Wrap three methods of a class of schedulers, whose events go to a file."""
    add, schedule, update = (
        scheduler.add_request, scheduler.schedule, scheduler.update_from_output
    )  # fmt: skip
    started: dict[int, float] = {}

    def write(event: dict[str, Any]) -> None:
        with target.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def add_request(self: Any, request: Any) -> Any:
        at, prompt = time.monotonic(), list(request.prompt_token_ids)
        write({"add": request.request_id, "prompt": prompt, "output": request.max_tokens, "at": at})
        return add(self, request)

    def timed_schedule(self: Any, *given: Any, **named: Any) -> Any:
        at = time.monotonic()
        output = schedule(self, *given, **named)
        started[id(output)] = at
        return output

    def update_from_output(self: Any, output: Any, result: Any) -> Any:
        end, at = time.monotonic(), started.pop(id(output))
        if output.num_scheduled_tokens:
            write({"step": _rows(output), "at": at, "end": end})
        return update(self, output, result)

    scheduler.add_request = add_request
    scheduler.schedule = timed_schedule
    scheduler.update_from_output = update_from_output


def _rows(output: Any) -> list[list[Any]]:
    """Requests of a ``SchedulerOutput``: id, new tokens, computed tokens."""
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return [[r, int(n), int(computed[r])] for r, n in output.num_scheduled_tokens.items()]
