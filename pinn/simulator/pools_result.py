"""Simulation result of a prefill pool and a decode pool: client metrics and pool metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from pinn.common import Json, JsonObject
from pinn.common.numbers import fixed, number
from pinn.common.screen import Grid, page, say
from pinn.engines.labels import hardware_label
from pinn.simulator import statistics
from pinn.simulator.pools import Pool, PoolsRun
from pinn.simulator.pools_error import POOLS_BIAS
from pinn.simulator.report import LATENCIES, print_latencies, served_facts, tier_facts
from pinn.simulator.result import Reported, Served, finite_values, load_facts
from pinn.simulator.run import Run, write_requests
from pinn.simulator.statistics import Metrics
from pinn.specs.serving import VLLM

#: Reason why disaggregated prefill/decode has no intervals.
_NO_INTERVALS = f"they exist for ordinary servers only; {POOLS_BIAS}"


@dataclass(frozen=True, repr=False, eq=False)
class PoolsSimulation(Served):
    """Result of a simulation of two pools, with metrics as clients see them.

    Attributes:
        found: Records of both simulated pools.
        prefill: Servers of the prefill pool.
        decode: Servers of the decode pool.
        about: Description of each pool for the JSON output, prefill first.
        reported: Percentiles to print, and SLO limits to check.
    """

    found: PoolsRun
    prefill: Pool
    decode: Pool
    about: Sequence[Mapping[str, Json]] = ({}, {})
    reported: Reported = field(default_factory=Reported)

    @property
    def run(self) -> Run:
        """Run of the decode pool, with latencies as clients see them."""
        return self.found.decode

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics that clients see."""
        return statistics.client_statistics(self.run, None, self.reported.percentiles)

    @cached_property
    def pools(self) -> dict[str, Metrics]:
        """Return the metrics of each pool's engines, by pool name (``prefill``, ``decode``)."""
        pools = {"prefill": (self.prefill, self.found.prefill), "decode": (self.decode, self.run)}
        return {
            name: {"workers": pool.engine.replicas, "gpus": pool.gpus}
            | statistics.engine_statistics(run)
            for name, (pool, run) in pools.items()
        }

    @cached_property
    def kv_transfer(self) -> Metrics:
        """Return the metrics of KV transfers, such as their number, bytes and seconds.

        ``link`` is the time of the transfer itself. ``wait`` is the rest of the time between the
        end of prefill and the arrival of its KV cache: until the decode server accepts the request,
        until KV blocks are free, and until earlier transfers end.
        """
        transfers, link = self.found.transfers, self.found.link
        moved = transfers.tokens > 0
        sizes = transfers.link_bytes[moved]
        return {
            "transfers": int(moved.sum()),
            "link_bytes_per_s": link.bytes_per_s,
            "latency_s": link.latency_s,
            "gigabytes": float(transfers.link_bytes.sum()) / 1e9,
            "gigabytes_mean": float(sizes.mean()) / 1e9 if moved.any() else 0.0,
            **self._latencies("link", transfers.link_s[moved]),
            **self._latencies("wait", transfers.waited_s[moved]),
        }

    def _latencies(self, name: str, seconds: np.ndarray) -> Metrics:
        return statistics.latency_statistics(name, seconds, None, self.reported.percentiles)

    @property
    def assumptions(self) -> list[str]:
        """Return the assumptions of the simulation of two pools, one clause each."""
        return [
            "KV transfers start after the prefill, without overlapping it",
            "each worker's link carries one transfer at a time",
            "the decode worker recomputes the last prompt token and generates "
            "the first token, as with vLLM's NixlConnector"
            if self.decode.deployment.serving.engine == VLLM
            else "the prefill worker generates the first token and sends it with the KV blocks",
            "the prefill worker frees a prompt's KV blocks when its step ends",
            *(["only prefill workers offload KV blocks to host memory"] if self._tiered else []),
        ]

    @property
    def _tiered(self) -> bool:
        return self.found.prefill.tier is not None

    def to_json(self) -> JsonObject:
        """Return the JSON document that ``pinn simulate --json`` writes."""
        pools: JsonObject = {
            name: {**metrics, "deployment": about}
            for (name, metrics), about in zip(self.pools.items(), self.about, strict=True)
        }
        stages = [
            statistics.client_statistics(self.run, stage, self.reported.percentiles)
            for stage in range(self.run.workload.stages)
        ]
        return finite_values(
            {
                **self.metrics,
                "pools": pools,
                "kv_transfer": self.kv_transfer,
                "stages": stages,
                "overloaded": self.overloaded,
                **load_facts(self.run, self.goodput),
                "intervals": {"missing": _NO_INTERVALS},
                "assumptions": self.assumptions,
            }
        )

    def write_requests(self, path: Path) -> None:
        """Write a Parquet table with one row per request, including the request's KV transfer."""
        write_requests(self.run, path, self.found.transfers.columns())

    def print_report(self) -> None:
        """Print latencies, transfers and each pool's metrics as tables."""
        heading = f"{self.decode.deployment.model.name}, {self.run.workload.name}"
        parts = (heading, "disaggregated prefill/decode", self.overloaded)
        if self.goodput is not None:
            say(f"{self.goodput.sentence}.")
        say(", ".join(filter(None, parts)))
        if self.run.workload.reading is not None:
            say(f"{self.run.workload.reading}.")
        transfer = self.kv_transfer
        print_latencies(self.run, self.metrics | transfer, _LATENCIES, {}, self.reported.shown)
        labels = [hardware_label(pool.deployment) for pool in (self.prefill, self.decode)]
        table = Grid.of("pool", *self.pools)
        for row, text in _POOL_ROWS.items():
            table.add(row, *map(text, self.pools.values(), labels))
        page().print(table)
        moved = (
            f"{transfer['transfers']:,} prompts, "
            f"{number(transfer['gigabytes_mean'])} GB each on average, at "
            f"{transfer['link_bytes_per_s'] / 1e9:g} GB/s per GPU"
        )
        facts = served_facts(self.run, self.metrics) | {"KV transfer": moved}
        if self._tiered:
            facts |= tier_facts(self.pools["prefill"])
        for name, words in facts.items():
            page().print(f"{name:<12}  {words}")
        say(f"Assumed: {'; '.join(self.assumptions)}.")
        say(f"No intervals: {_NO_INTERVALS}.")


_LATENCIES = LATENCIES | {
    "scheduling_delay": "prefill queue time",
    "wait": "transfer wait",
    "link": "KV transfer",
}


_POOL_ROWS: Mapping[str, Callable[[Metrics, str], str]] = {
    "workers": lambda found, label: f"{found['workers']} x {label}",
    "GPUs": lambda found, _: str(found["gpus"]),
    "busy": lambda found, _: f"{100 * found['busy_share']:.1f} % of the time",
    "waiting": lambda found, _: (
        f"{fixed(found['waiting_mean'])} requests, at most {found['waiting_max']:,}"
    ),
    "running": lambda found, _: f"at most {found['running_max']:,} requests",
    "KV cache": lambda found, _: (
        f"{100 * found['kv_usage_mean']:.1f} %, at most {100 * found['kv_usage_max']:.1f} %"
    ),
    "steps": lambda found, _: f"{found['steps']:,}, {found['tokens_per_step']:,.1f} tokens each",
}
