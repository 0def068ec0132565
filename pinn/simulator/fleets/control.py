"""Life cycle of a fleet's servers: start, failure, draining and stop."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Shaped

from pinn.errors import PinnError
from pinn.simulator.engine import ARRAYS, Engine
from pinn.simulator.fleets.autoscaler import Scaling
from pinn.simulator.fleets.loop import (
    compiled_advance_fleet,
    compiled_dispatch,
    compiled_next_moment,
)
from pinn.simulator.fleets.spec import RESEND, FleetSpec
from pinn.simulator.loop import BAD_STEP, DONE, FULL
from pinn.simulator.state import (
    FINISHED,
    LOST,
    REJECTED,
    TIMED_OUT,
    UNSENT,
)

#: Status of a server: off, starting, serving, draining, or failed.
OFF, STARTING, READY, DRAINING, DOWN = range(5)
#: Types of fleet events, in the order in which simultaneous events are handled.
_READY, _FAIL, _RESTART, _TICK = range(4)


@dataclass
class ServerState:
    """State of a server of a fleet.

    Attributes:
        kind: Index of the server's kind (all servers of a kind have the same deployment).
        copy: Index of the server within its kind.
        status: Status from ``OFF`` to ``DOWN``.
        since_s: Time in seconds when the current start was requested, while the server is on.
        on: Past (begin, end) spans in which the server's GPUs were in use, in seconds.
        serial: Number of starts so far; events planned for an earlier start are dropped.
    """

    kind: int
    copy: int
    status: int = OFF
    since_s: float = 0.0
    on: list[tuple[float, float]] = field(default_factory=list)
    serial: int = 0


@dataclass
class Control:
    """State of a fleet during a run.

    Attributes:
        spec: Description of the fleet.
        front: Engine without servers that represents the clients.
        engines: Engine state of each kind, which covers all servers of the kind.
        models: Compiled latency model of each kind.
        scaling: State of the autoscaler; None for a fixed fleet.
        servers: All servers, kind by kind.
        events: Heap of events (time in seconds, type, server, serial).
        resent: Number of requests that clients resent after a failure.
        lost: Number of requests that ended with an error because their server failed.
    """

    spec: FleetSpec
    front: Engine
    engines: tuple[Engine, ...]
    models: tuple[Any, ...]
    scaling: Scaling | None
    first_servers: Sequence[int]
    servers: list[ServerState] = field(default_factory=list)
    events: list[tuple[float, int, int, int]] = field(default_factory=list)
    resent: int = 0
    lost: int = 0
    _sent: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    _fresh: list[dict[str, Shaped[np.ndarray, " records"]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        counts = [int(engine.config.n_copies) for engine in self.engines]
        for kind, engine in enumerate(self.engines):
            place = int(engine.config.first_copy)
            engine.copies["turn"][:] = np.arange(place, place + counts[kind]) - sum(counts)
            first = self.first_servers[kind]
            for copy in range(counts[kind]):
                status = READY if copy < first else OFF
                self.servers.append(ServerState(kind, copy, status))
                engine.copies["closed"][copy] = status != READY
            self._fresh.append(_snapshot(engine) if self.spec.failures else {})
        for failure in self.spec.failures:
            if not 0 <= failure.server < len(self.servers):
                raise PinnError(
                    f"failures: server is {failure.server}, but the fleet has "
                    f"{len(self.servers)} servers: give a number from 0 to {len(self.servers) - 1}"
                )
            heapq.heappush(self.events, (failure.at_s, _FAIL, failure.server, -1))
        if self.scaling is not None:
            heapq.heappush(self.events, (self.scaling.rule.interval_s, _TICK, -1, -1))

    def run(self, *_: object) -> int:
        """Advance the fleet until all requests have ended or a record buffer is full."""
        while True:
            until_s = self.events[0][0] if self.events else math.inf
            status = int(compiled_advance_fleet(self.front, self.engines, self.models, until_s))
            if status in (FULL, BAD_STEP):
                return status
            held = int(self.front.counters.leaving)
            if status == DONE and not held:
                return DONE
            if not self.events:
                raise PinnError(
                    f"{held:,} requests wait for a server, but no server is left or will start: "
                    "reduce failures, or add an autoscaler"
                )
            while self.events and self.events[0][0] == until_s:
                self._act(*heapq.heappop(self.events))
            # Send requests held by the router after all events of this moment, so that none goes to
            # a server that one of these events closes.
            self._send_held(until_s)

    def _act(self, now_s: float, what: int, place: int, serial: int) -> None:
        if what == _TICK:
            self._scale(now_s)
            return
        server = self.servers[place]
        if what == _FAIL:
            self._fail(now_s, place)
        elif serial != server.serial:
            return
        elif what == _RESTART:
            self._start(now_s, place)
        elif server.status == STARTING:
            self._open(server)

    def _start(self, now_s: float, place: int) -> None:
        server = self.servers[place]
        server.serial += 1
        server.status, server.since_s = STARTING, now_s
        event = (now_s + self.spec.start_up_s, _READY, place, server.serial)
        if self.spec.start_up_s == 0:
            self._act(*event)
        else:
            heapq.heappush(self.events, event)

    def _open(self, server: ServerState) -> None:
        server.status = READY
        self.engines[server.kind].copies["closed"][server.copy] = 0
        for engine in self.engines:
            engine.counters.look_s = 0.0  # the router sees the new server at once

    def _stop(self, server: ServerState, now_s: float) -> None:
        server.on.append((server.since_s, now_s))
        server.status = OFF
        server.serial += 1

    def _send_held(self, now_s: float) -> None:
        held = [int(r) for r in self.front.leaving["request"][: self.front.counters.leaving]]
        self.front.counters.leaving = 0
        for r in held:
            compiled_dispatch(self.front, self.engines, r, now_s)

    # Failures: requests in flight on a failed server are resent or lost.

    def _fail(self, now_s: float, place: int) -> None:
        server = self.servers[place]
        failure = next(f for f in self.spec.failures if (f.at_s, f.server) == (now_s, place))
        if server.status in (OFF, DOWN):
            return
        engine = self.engines[server.kind]
        self._stop(server, now_s)
        server.status = DOWN
        gone = self._in_flight(server)
        _restore(engine, self._fresh[server.kind], server.copy)
        _forget_deadlines(engine, gone)
        engine.copies["closed"][server.copy] = 1
        heapq.heappush(self.events, (now_s + failure.down_s, _RESTART, place, server.serial))
        for r in gone:
            np.asarray(engine.requests)[r] = self._fresh[server.kind]["requests"][r]
            if self.spec.in_flight == RESEND:
                self.resent += 1
                _leave(self.front, int(r), now_s)
            else:
                self.lost += 1
                engine.requests["status"][r] = LOST
                engine.requests["last_s"][r] = now_s
                _leave(engine, int(r), now_s)

    def _in_flight(self, server: ServerState) -> np.ndarray:
        """Return the numbers of the unfinished requests on a server, in order of arrival."""
        engine = self.engines[server.kind]
        ranks = int(engine.config.n_replicas) // int(engine.config.n_copies)
        requests = engine.requests
        open_ones = ~np.isin(requests["status"], (UNSENT, FINISHED, TIMED_OUT, REJECTED, LOST))
        mine = np.flatnonzero(open_ones & (requests["replica"] // ranks == server.copy))
        return mine[np.argsort(requests["sent_s"][mine], kind="stable")]

    # Autoscaler: periodic decisions to start and drain servers.

    def _scale(self, now_s: float) -> None:
        scaling = self.scaling
        assert scaling is not None
        rule = scaling.rule
        before_it = [server.status for server in self.servers]
        self._sent.append((now_s, int(self.front.counters.all_sent)))
        while len(self._sent) > 2 and self._sent[1][0] <= now_s - rule.window_s:
            self._sent.pop(0)
        (begin_s, before), (_, sent) = self._sent[0], self._sent[-1]
        mine = [i for i, server in enumerate(self.servers) if server.kind == rule.kind]
        self._end_drained(mine, now_s)
        present = [i for i in mine if self.servers[i].status in (STARTING, READY, DOWN)]
        wanted = scaling.decide(now_s, (sent - before) / (now_s - begin_s), len(present))
        drained = [i for i in mine if self.servers[i].status == DRAINING]
        for place in drained[: max(wanted - len(present), 0)]:
            self._open(self.servers[place])
            present.append(place)
        off = [i for i in mine if self.servers[i].status == OFF]
        for place in off[: max(wanted - len(present), 0)]:
            self._start(now_s, place)
        spare = [i for i in reversed(present) if self.servers[i].status in (STARTING, READY)]
        for place in spare[: max(len(present) - wanted, 0)]:
            self._drain(self.servers[place], now_s)
        changed = before_it != [server.status for server in self.servers]
        settled = sent == before and not changed and scaling.settled
        next_s = self._next_tick_s(now_s) if settled else now_s + rule.interval_s
        if next_s < math.inf:
            heapq.heappush(self.events, (next_s, _TICK, -1, -1))

    def _next_tick_s(self, now_s: float) -> float:
        """Return the time in seconds of the next decision that a settled autoscaler has to make.

        Decisions before the fleet's next event would not differ, so they are skipped. The last
        decisions before the event are still made, because later decisions depend on them. If no
        event remains, the time is infinite.
        """
        assert self.scaling is not None
        rule = self.scaling.rule
        next_s, statuses = now_s + rule.interval_s, {server.status for server in self.servers}
        if DRAINING in statuses or (self.front.counters.leaving and READY in statuses):
            return next_s
        event_s = float(compiled_next_moment(self.front, self.engines))
        event_s = min(event_s, self.events[0][0] if self.events else math.inf)
        if event_s == math.inf:
            return math.inf
        skipped = (event_s - max(rule.window_s, rule.down_after_s) - next_s) / rule.interval_s
        return next_s + max(math.floor(skipped) - 1, 0) * rule.interval_s

    def _drain(self, server: ServerState, now_s: float) -> None:
        """Stop routing requests to a server, and stop the server once its requests have ended."""
        if server.status == STARTING:
            self._stop(server, now_s)
            return
        self.engines[server.kind].copies["closed"][server.copy] = 1
        server.status = DRAINING
        if not len(self._in_flight(server)):
            self._stop(server, now_s)

    def _end_drained(self, places: Sequence[int], now_s: float) -> None:
        for place in places:
            server = self.servers[place]
            if server.status == DRAINING and not len(self._in_flight(server)):
                self._stop(server, self._last_end_s(server, now_s))

    def _last_end_s(self, server: ServerState, now_s: float) -> float:
        requests = self.engines[server.kind].requests
        ranks = len(self.engines[server.kind].replicas) // len(self.engines[server.kind].copies)
        mine = (requests["replica"] // ranks == server.copy) & (requests["status"] >= FINISHED)
        mine &= requests["last_s"] <= now_s
        return float(requests["last_s"][mine].max(initial=server.since_s))

    def finish(self, end_s: float) -> None:
        """Close the time spans of all servers that are on at the end of the run."""
        for server in self.servers:
            if server.status == DRAINING:
                self._stop(server, self._last_end_s(server, end_s))
            elif server.status not in (OFF, DOWN):
                self._stop(server, max(end_s, server.since_s))


def _leave(engine: Engine, r: int, now_s: float) -> None:
    """Record that a request leaves a failed engine, so that the router resends or drops it."""
    place = int(engine.counters.leaving)
    engine.leaving["moment_s"][place], engine.leaving["request"][place] = now_s, r
    engine.counters.leaving += 1
    engine.counters.progress += 1


def _per_copy(engine: Engine) -> dict[str, int]:
    """Return each array's number of entries per server, by array name.

    Only arrays whose first axis counts servers, or parts of servers, are included.
    """
    config = engine.config
    axes = ("n_replicas", "n_groups", "n_servers", "n_copies")
    return {
        name: int(getattr(config, array.shape[0])) // int(config.n_copies)
        for name, array in ARRAYS.items()
        if array.shape[0] in axes
    }


def _snapshot(engine: Engine) -> dict[str, np.ndarray]:
    """Return copies of an engine's initial arrays, by array name.

    The copies contain the entries of one idle server, and all requests.
    """
    parts = {name: getattr(engine, name)[:each].copy() for name, each in _per_copy(engine).items()}
    return parts | {"requests": engine.requests.copy()}  # type: ignore[attr-defined]


def _restore(engine: Engine, fresh: dict[str, np.ndarray], copy: int) -> None:
    """Reset the arrays of server ``copy`` to the idle, empty state of a newly started server."""
    for name, each in _per_copy(engine).items():
        getattr(engine, name)[copy * each : (copy + 1) * each] = fresh[name]


def _forget_deadlines(engine: Engine, gone: np.ndarray) -> None:
    """Remove requests from the heap of client timeouts, in place (a sorted list is a heap)."""
    deadlines = np.asarray(engine.deadlines)
    open_ones = deadlines[: int(engine.counters.deadlines)]
    kept = np.sort(open_ones[~np.isin(open_ones["request"], gone)], order="moment_s")
    deadlines[: len(kept)] = kept
    engine.counters.deadlines = len(kept)
