"""Simulation of the two pools of disaggregated prefill/decode, and the records of such a run."""

from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float, Int, Shaped

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.memory.host_tier import host_tier
from pinn.memory.kv_cache import kv_layout
from pinn.simulator import linear_latency, loop, setup, simulate
from pinn.simulator.engine import Engine
from pinn.simulator.latency_model import LatencyModel
from pinn.simulator.run import RequestRecords, Run
from pinn.simulator.state import DECODES, PREFILLS, REJECTED, TIMED_OUT, UNSENT
from pinn.simulator.transfers import with_tier
from pinn.simulator.workloads.workload import Workload
from pinn.specs.gpu import network_bytes_per_s

# Requests as seen by clients of the two pools, and the KV transfers between the pools.


@dataclass(frozen=True)
class Transfers:
    """KV transfers between the pools, per request; NaN or 0 for requests without a transfer.

    Attributes:
        left_s: Time in seconds when prefill completed and the request left for a decode server.
        loading_s: Time in seconds when the decode server had allocated KV blocks.
        ready_s: Time in seconds when the keys and values arrived.
        tokens: Number of tokens transferred; fewer than the prompt's if the decode server had
            cached a prefix.
        link_s: Transfer time in seconds at the slower end of the link, including latency.
        link_bytes: Bytes transferred, summed over all GPUs of the decode worker.
    """

    left_s: Float[np.ndarray, " requests"]
    loading_s: Float[np.ndarray, " requests"]
    ready_s: Float[np.ndarray, " requests"]
    tokens: Int[np.ndarray, " requests"]
    link_s: Float[np.ndarray, " requests"]
    link_bytes: Float[np.ndarray, " requests"]

    def columns(self) -> dict[str, Shaped[np.ndarray, " requests"]]:
        """Return the columns of the table of transfers by name, with one value per request."""
        return {f"transfer_{f.name}": getattr(self, f.name) for f in fields(self)}

    @property
    def waited_s(self) -> Float[np.ndarray, " requests"]:
        """Time in seconds from the end of prefill to the KV cache's arrival, without link time."""
        return self.ready_s - self.left_s - self.link_s


#: Fields of a request's record that come from the prefill pool.
_OF_PREFILL = (
    "arrival_s", "handed_s", "queued_s", "scheduled_s", "cached_tokens", "reused_tokens",
    "handed_work", "loaded_tokens", "stored_tokens", "load_wait_s",
)  # fmt: skip


def client_records(
    ahead: Engine, behind: Engine, ahead_latency: LatencyModel, behind_latency: LatencyModel
) -> RequestRecords:
    """Return the records of requests over both pools, as clients see them.

    Prefix cache hits and the times before the first token are taken from the prefill pool;
    ``replica``, ``first_token_s`` and later times are taken from the decode pool. Computed tokens
    and preemptions are sums over both pools. ``ahead`` is the engine of the prefill pool,
    ``behind`` that of the decode pool.

    Raises:
        PinnError: If requests remain that a pool can never schedule.
    """
    begun = simulate.read_records(ahead, ahead_latency)
    status = ahead.requests["status"]
    answers = behind.requests
    lost = (answers["status"] == UNSENT) & np.isin(status, (TIMED_OUT, REJECTED))
    answers["status"][lost] = status[lost]
    ended = simulate.read_records(behind, behind_latency)
    return replace(
        ended,
        finish_s=np.where(begun.finished, ended.finish_s, begun.finish_s),
        computed_tokens=begun.computed_tokens + ended.computed_tokens,
        preemptions=begun.preemptions + ended.preemptions,
        early_preemptions=begun.preemptions + ended.early_preemptions,
        recomputed_tokens=begun.recomputed_tokens + ended.recomputed_tokens,
        **{name: getattr(begun, name) for name in _OF_PREFILL},
    )


def read_transfers(behind: Engine, token_bytes: float) -> Transfers:
    """Return the transfers that the decode pool's engine recorded during a run.

    Args:
        behind: Engine of the decode pool after the run.
        token_bytes: KV cache bytes per token, summed over all GPUs of a decode worker.
    """
    r, config = behind.requests, behind.config
    tokens = r["moved"].astype(np.int64)
    link_s = tokens * max(config.transfer_token_s, config.source_token_s)
    times = (r["sent_s"], r["loading_s"], r["ready_s"], link_s + config.transfer_latency_s)
    left_s, loading_s, ready_s, link_s = (np.where(tokens > 0, each, np.nan) for each in times)
    return Transfers(left_s, loading_s, ready_s, tokens, link_s, tokens * token_bytes)


# Disaggregated prefill/decode: each request passes through both pools of servers.
#
# The protocol is that of vLLM with a connector that pulls (``NixlConnector``) behind a proxy
# (``tests/v1/kv_connector/nixl_integration/toy_proxy_server.py``). The proxy asks a prefill server
# for one token, then a decode server for the whole answer. The decode server fetches the prompt's
# keys and values from the prefill server, and recomputes the last prompt token to generate the
# client's first token.
#
# Only the prefill servers have a second KV tier, because only they compute repeated prompts (in
# vLLM by MultiConnector, together with the connector between the pools).
#
# Assumptions: a transfer follows the prefill without overlap; the links of a prefill worker and of
# a decode worker each carry one transfer at a time; a prompt's blocks are freed on the prefill
# server when its step ends. SGLang and TensorRT-LLM transfer the first token with the keys and
# values, so their clients see the first token one decode step earlier.


@dataclass(frozen=True)
class Pool:
    """Identical servers: a prefill pool, a decode pool, or one kind of server in a fleet.

    Attributes:
        deployment: Model, GPU and flags of each server.
        latency: Latency model of each server, which returns seconds.
        engine: Settings of each server's engine; ``replicas`` is the number of servers.
    """

    deployment: Deployment
    latency: LatencyModel
    engine: EngineSpec

    @property
    def gpus(self) -> int:
        """Number of GPUs of all servers together."""
        return self.engine.replicas * self.deployment.recipe.data_parallel_size * self.ranks

    @property
    def ranks(self) -> int:
        """Number of GPUs that share one copy of the attention layers, each with its own link."""
        recipe = self.deployment.recipe
        return recipe.tensor_parallel_size * recipe.pipeline_parallel_size


@dataclass(frozen=True)
class Link:
    """Network between the pools.

    Attributes:
        bytes_per_s: Bandwidth of each GPU in one direction, in bytes/s; infinity for instantaneous
            transfers.
        latency_s: Delay in seconds before each transfer starts.
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0:
            raise PinnError(
                "the link between prefill and decode workers needs a positive "
                f"bandwidth, got {self.bytes_per_s:g} bytes/s: give "
                "--kv-link-gb-per-s, or inf for instant transfers"
            )


@dataclass(frozen=True)
class PoolsRun:
    """Records of two simulated pools.

    Attributes:
        prefill: Steps and KV cache of the prefill pool, with the requests as clients see them.
        decode: Run of the decode pool, whose ITL clients see.
        transfers: KV transfers from prefill to decode workers, one per request.
        link: Network between the pools.
    """

    prefill: Run
    decode: Run
    transfers: Transfers
    link: Link


def default_link(prefill: Pool, decode: Pool) -> Link:
    """Return a link with the bandwidth of the slower of the pools' network adapters."""
    gpus = (prefill.deployment.gpu, decode.deployment.gpu)
    return Link(min(network_bytes_per_s(gpu) for gpu in gpus))


def simulate_pools(
    prefill: Pool,
    decode: Pool,
    workload: Workload,
    link: Link | None = None,
    *,
    compiled: bool | None = None,
) -> PoolsRun:
    """Serve a workload on a prefill pool and a decode pool that share one clock.

    Args:
        prefill: Servers that compute prompts.
        decode: Servers that generate output tokens.
        workload: Requests that clients send.
        link: Network between the pools; by default that of :func:`default_link`.
        compiled: Whether to run compiled code; by default, if both latency models allow it.

    Raises:
        PinnError: If :func:`pinn.simulator.simulate.simulate` would reject a pool or the workload,
            or if the pools cannot serve together.
    """
    _check_alike(prefill.deployment, decode.deployment)
    if (workload.transferred_tokens > 0).any():
        raise PinnError(
            f"the workload {workload.name} has a column transferred_tokens, which "
            "describes transfers from separate prefill servers: remove the column, or "
            "omit --prefill and --decode"
        )
    first, brought = halves(workload)
    decode = replace(decode, engine=decode.engine.without_tier)
    layouts = [kv_layout(pool.deployment, pool.engine) for pool in (prefill, decode)]
    refused = setup.check_run(prefill.deployment, first, prefill.engine, layouts[0])
    refused |= setup.check_run(decode.deployment, workload, decode.engine, layouts[1])
    ahead = setup.set_up(prefill.deployment, first, prefill.engine, layouts[0], refused)
    sources = int(ahead.config.n_replicas)
    behind = setup.set_up(decode.deployment, brought, decode.engine, layouts[1], refused, sources)
    token_bytes = layouts[1].token_bytes(decode.deployment.recipe.block_tokens)
    link = link or default_link(prefill, decode)
    _join(ahead, behind, prefill, decode, link, token_bytes)
    latencies = [linear_latency.complete_latency(pool.latency) for pool in (prefill, decode)]
    engines = [ahead, behind]
    records = simulate.run_engines(
        (loop.advance_pools, loop.compiled_advance_pools), engines, latencies, compiled
    )
    requests = client_records(ahead, behind, *latencies)
    first_run, second_run = (
        simulate.finished_run(workload, state, requests, recorded, layout.blocks)
        for state, recorded, layout in zip(engines, records, layouts, strict=True)
    )
    tier = host_tier(prefill.deployment, prefill.engine, layouts[0])
    first_run = with_tier(first_run, tier, ahead.replicas, prefill.deployment.recipe.block_tokens)
    transfers = read_transfers(behind, token_bytes * decode.ranks)
    return PoolsRun(first_run, second_run, transfers, link)


def halves(workload: Workload) -> tuple[Workload, Workload]:
    """Split a workload into the prefill servers' part and the decode servers' part.

    A request without output passes through both pools like a request with one output token.

    Raises:
        PinnError: If no request has output tokens.
    """
    if not workload.output_tokens.any():
        raise PinnError(
            f"the workload {workload.name} has no output tokens, so decode workers "
            "have nothing to do: omit --prefill and --decode"
        )
    first = replace(workload, output_tokens=np.ones(len(workload), np.int64))
    return first, replace(workload, transferred_tokens=workload.prompt_tokens)


def _check_alike(prefill: Deployment, decode: Deployment) -> None:
    """Raise an error if two pools have different KV layouts, since KV is copied unchanged."""
    for what, one, other in (
        ("model", prefill.model.name, decode.model.name),
        ("format of the KV cache", prefill.kv_cache_precision.name, decode.kv_cache_precision.name),
        ("--engine", prefill.serving.engine, decode.serving.engine),
        ("--block-size", prefill.recipe.block_tokens, decode.recipe.block_tokens),
    ):
        if one != other:
            raise PinnError(
                f"the prefill workers have the {what} {one}, but the decode workers {other}: give "
                "both pools equal values, since the KV cache is transferred unchanged"
            )


def _join(
    ahead: Engine, behind: Engine, prefill: Pool, decode: Pool, link: Link, token_bytes: float
) -> None:
    """Set the roles of two engines, and the links between them.

    Each GPU of a decode worker receives its share of the keys and values. The GPUs of a prefill
    worker together send the same bytes.
    """
    ahead.config.role, behind.config.role = PREFILLS, DECODES
    # Decode servers receive computed prompts, so they need no separate prefill steps.
    behind.config.prefill_first = 0
    # Decode servers receive requests only from the prefill servers, which limit the concurrency.
    behind.counters.next, behind.config.concurrency = behind.config.n_requests, 0
    token_s = token_bytes / link.bytes_per_s
    behind.config.transfer_token_s = token_s
    behind.config.source_token_s = token_s * decode.ranks / prefill.ranks
    behind.config.transfer_latency_s = link.latency_s
