"""Finished plans, made up for tests or read from files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pinn.planning.plan import (
    STATISTICS,
    Choice,
    Fleet,
    FrontierPoint,
    GpuOutcome,
    HighestRate,
    Plan,
    PlanSummary,
    Point,
    RejectedCandidate,
)
from pinn.simulator.slo import LimitOutcome

_FACTORS = dict(zip(STATISTICS, (1.0, 0.95, 1.5, 1.8, 2.5), strict=True))
_STEP_TIME = {
    "weights": 0.4,
    "gemm_compute": 0.3,
    "experts": 0.0,
    "communication": 0.2,
    "host": 0.1,
}


def point(rate_per_s: float, gpus: int, holds: bool | None = True, slower: float = 1.0) -> Point:
    """Return a simulated run; if it fails, percentiles of TTFT beyond P90 are unknown."""
    means = {"ttft": 0.15, "tpot": 0.024, "itl": 0.023, "e2e": 6.0}
    latency: dict[str, dict[str, float | None]] = {
        metric: {name: slower * mean * factor for name, factor in _FACTORS.items()}
        for metric, mean in means.items()
    }
    if holds is False:
        latency["ttft"] |= {"p95": None, "p99": None}
    tokens_per_s = 230 * rate_per_s
    e2e_s = latency["e2e"]["p99"]
    limits = [
        LimitOutcome("p99 E2E <= 30 s", "p99 E2E", "<= 30 s", e2e_s, None, True, e2e_s / 30),
        LimitOutcome("95 % of the requests: TTFT <= 1 s and TPOT <= 40 ms", "95 % of requests",
                     "TTFT <= 1 s and TPOT <= 40 ms", None, 0.99, holds is not False, slower / 1.6),
    ]  # fmt: skip
    return Point(rate_per_s, 1000, holds, 0.99, latency, tokens_per_s, tokens_per_s / gpus,
                 1 / (0.024 * slower), limits)  # fmt: skip


def choice(gpu: str, gpus_each: int, replicas: int, highest: float, price: float | None) -> Choice:
    """Return a choice that serves 12 requests/s."""
    gpus = gpus_each * replicas
    cost = None if price is None else price * gpus
    ladder = [
        point(highest * share, gpus_each, share <= 1, 0.8 + share**4)
        for share in (0.3, 0.6, 0.9, 1.0, 1.1)
    ]
    return Choice(
        label=f"{gpu} TP {gpus_each} bf16 <8192 tokens>",
        engine="vllm",
        gpu=gpu,
        gpus_per_replica=gpus_each,
        replicas=replicas,
        gpus=gpus,
        formats={"attention": "bf16", "kv_cache": "bf16"},
        flags={"tensor_parallel_size": gpus_each, "max_num_seqs": 256},
        coefficients="network",
        highest_rate=HighestRate(highest, 1.01 * highest, [highest]),
        fleet_rate=HighestRate(
            replicas * highest,
            1.01 * replicas * highest,
            interval_per_s=(0.8 * replicas * highest, 1.2 * replicas * highest),
            level=0.9,
        ),
        utilization=12 / (replicas * highest),
        at_rate=point(12 / replicas, gpus_each),
        cost_per_hour=cost,
        cost_per_million_prompt_tokens=None if cost is None else cost / (12 * 922 * 3600e-6),
        cost_per_million_output_tokens=None if cost is None else cost / (12 * 230 * 3600e-6),
        limited_by="decode bandwidth",
        chance=0.97,
        safe=True,
        ladder=ladder,
        step_time=_STEP_TIME,
        fleets=[Fleet("least-requests", point(12.0, gpus))],
        serve_command=f"vllm serve a-model --tensor-parallel-size {gpus_each}",
        simulate_command=f"pinn simulate --model a-model --replicas {replicas}",
        fails_first="95 % of the requests: TTFT <= 1 s and TPOT <= 40 ms",
    )


def plan(
    rate_per_s: float | None = 12.0, has_prices: bool = True, has_choices: bool = True
) -> Plan:
    """Return a plan of three choices on three GPUs, cheapest first, and two rejected candidates."""
    prices = {"H200-SXM": 3.2, "H100-SXM": 2.5, "L40S": 1.1}
    made = [
        choice(gpu, each, replicas, highest, prices[gpu] if has_prices else None)
        for gpu, each, replicas, highest in (
            ("H200-SXM", 4, 3, 4.4), ("H100-SXM", 8, 2, 7.1), ("L40S", 8, 9, 1.4)
        )
    ]  # fmt: skip
    choices = made if has_choices else []
    frontier = [
        FrontierPoint(c.label, c.gpu, c.gpus_per_replica, p.rate_per_s, p.output_tokens_per_gpu_s,
                      p.user_tokens_per_s or 0.0, c is choices[0])
        for c in choices
        for p in c.ladder
    ]  # fmt: skip
    ask = PlanSummary("an-organisation/a-model", "load.yaml", 10_000, 922.0, 230.0, 1280,
              rate_per_s,
              "ttft<=1s, tpot<=40ms for 95 %; p99 e2e<=30s", ["95 % of the requests: ..."],
              list(prices), 32, prices if has_prices else {})  # fmt: skip
    left_out = [
        RejectedCandidate("L40S TP 4", "L40S", "its weights take 32.9 GiB & more", False)
    ] * 2
    by_gpu = [GpuOutcome(c.gpu, place) for place, c in enumerate(choices, 1)]
    return Plan(ask, choices, by_gpu, left_out, frontier, 84, 412, 38.2)


def read_plan(path: Path) -> Plan:
    """Read a plan that ``pinn plan`` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Plan)
