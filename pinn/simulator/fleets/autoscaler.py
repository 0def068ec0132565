"""Autoscaler: sets the number of servers from the request rate or from predicted latency."""

import math
from dataclasses import dataclass, field

from pinn.simulator.fleets.spec import RATE, Autoscaler
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.batch import Batch

#: Number of fixed-point iterations that find the number of running requests at a rate.
_ROUNDS = 200
#: Mean number of steps between a request's arrival and the start of the step that computes it: half
#: of the running step, and the next step, which asynchronous scheduling has already planned.
_STEPS_BEFORE = 1.5


@dataclass(frozen=True)
class MeanRequest:
    """Mean request of a load, and the latency model of the servers that receive the load.

    Attributes:
        latency: Latency model of the server.
        prompt_tokens: Mean number of prompt tokens that are not in the prefix cache.
        output_tokens: Mean number of output tokens.
        most_running: Maximum number of requests that run concurrently.
    """

    latency: LinearLatency
    prompt_tokens: float
    output_tokens: float
    most_running: int

    def latencies_s(self, rate_per_s: float) -> dict[str, float]:
        """Return a server's predicted mean TTFT and TPOT at a request rate, in seconds.

        By Little's law, (rate x output tokens x step time) requests decode concurrently, and each
        step computes (rate x step time) prompts. A fixed-point iteration from an idle server finds
        the step time. Without a fixed point the queue grows without bound, and both latencies are
        infinite.
        """
        step_s = self._step_s(1.0, 0.0)
        for _ in range(_ROUNDS):
            running = max(rate_per_s * self.output_tokens * step_s, 1.0)
            if running > self.most_running or rate_per_s * step_s > self.most_running:
                return {"ttft": math.inf, "tpot": math.inf}
            before, step_s = step_s, self._step_s(running, rate_per_s * step_s)
            if abs(step_s - before) < 1e-4 * before:
                own_s = self._batch_s(round(running), 1)
                return {"ttft": _STEPS_BEFORE * step_s + own_s, "tpot": step_s}
        return {"ttft": math.inf, "tpot": math.inf}

    def _step_s(self, running: float, prompts: float) -> float:
        """Return the step time in seconds of a batch with mean numbers of decodes and prompts.

        The time is interpolated between whole numbers of requests.
        """
        decodes, whole = int(running), int(prompts)
        more, some = running - decodes, prompts - whole
        return sum(
            weight * share * self._batch_s(decodes + i, whole + j)
            for i, weight in ((0, 1 - more), (1, more))
            for j, share in ((0, 1 - some), (1, some))
            if weight * share > 0
        )

    def _batch_s(self, decodes: int, prompts: int) -> float:
        context, tokens = round(self.prompt_tokens + self.output_tokens / 2), self.prompt_tokens
        return self.latency.step_time(
            Batch(
                (*(1,) * decodes, *(round(tokens),) * prompts),
                (*(context,) * decodes, *(0,) * prompts),
                (*(False,) * decodes, *(True,) * prompts),
            )
        )


@dataclass
class Scaling:
    """Decisions of an autoscaler over time.

    Attributes:
        rule: Settings of the autoscaler, such as its target and intervals.
        request: Mean request of the load, from which latencies are predicted.
        wanted: Recent decisions as pairs (time in seconds, desired number of servers).
    """

    rule: Autoscaler
    request: MeanRequest
    wanted: list[tuple[float, int]] = field(default_factory=list)
    _known: dict[int, dict[str, float]] = field(default_factory=dict)

    def decide(self, now_s: float, rate_per_s: float, present: int) -> int:
        """Return the desired number of servers at time ``now_s``.

        The number of servers increases immediately. It decreases only if no decision in the last
        ``down_after_s`` seconds requested more servers.
        """
        rule = self.rule
        need = self._need(rate_per_s)
        if abs(need / max(present, 1) - 1) <= rule.tolerance:
            need = present
        need = min(max(math.ceil(need - 1e-9), rule.least), rule.most)
        self.wanted = [each for each in self.wanted if each[0] > now_s - rule.down_after_s]
        self.wanted.append((now_s, need))
        return need if need >= present else min(max(n for _, n in self.wanted), present)

    @property
    def settled(self) -> bool:
        """Return whether all recent decisions requested the same number of servers."""
        return len({need for _, need in self.wanted}) == 1

    def _need(self, rate_per_s: float) -> float:
        rule = self.rule
        if rule.by == RATE:
            assert rule.target is not None
            return rate_per_s / rule.target
        for servers in range(rule.least, rule.most + 1):
            if self._meets(rate_per_s / servers):
                return servers
        return rule.most

    def _meets(self, rate_per_s: float) -> bool:
        """Return whether predicted TTFT and TPOT meet the limits at a server's request rate.

        The rate is rounded up by at most 1 %, so that results can be cached.
        """
        if rate_per_s <= 0:
            return True
        step = math.ceil(100 * math.log(rate_per_s))
        if step not in self._known:
            self._known[step] = self.request.latencies_s(math.exp(step / 100))
        found, limits = self._known[step], self.rule.limits_s
        return all(found[name] <= self.rule.margin * limit for name, limit in limits.items())
