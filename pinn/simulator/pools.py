"""Prefill and decode on servers of their own, and what such a run is reported by."""

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

# What clients see of two pools, and what went from the one to the other.


@dataclass(frozen=True)
class Transfers:
    """Keys and values that went over the network, per request; NaN or 0 where none did.

    Attributes:
        left_s: When the prefill server had answered and the request went to a decode server.
        loading_s: When the decode server had blocks for them.
        ready_s: When they were there.
        tokens: Tokens of theirs; fewer than the prompt's where the decode server had a prefix.
        link_s: Time that the slower end of the link took for them, its latency included.
        link_bytes: Bytes, over all GPUs of the decode worker.
    """

    left_s: Float[np.ndarray, " requests"]
    loading_s: Float[np.ndarray, " requests"]
    ready_s: Float[np.ndarray, " requests"]
    tokens: Int[np.ndarray, " requests"]
    link_s: Float[np.ndarray, " requests"]
    link_bytes: Float[np.ndarray, " requests"]

    def columns(self) -> dict[str, Shaped[np.ndarray, " requests"]]:
        """Per request, under names for a table."""
        return {f"transfer_{f.name}": getattr(self, f.name) for f in fields(self)}

    @property
    def waited_s(self) -> Float[np.ndarray, " requests"]:
        """From the prefill server's answer to the arrival, without the time on the link itself."""
        return self.ready_s - self.left_s - self.link_s


#: What clients see of a request at the prefill pool alone.
_OF_PREFILL = (
    "arrival_s", "handed_s", "queued_s", "scheduled_s", "cached_tokens", "reused_tokens",
    "handed_work", "loaded_tokens", "stored_tokens", "load_wait_s",
)  # fmt: skip


def client_records(
    ahead: Engine, behind: Engine, ahead_latency: LatencyModel, behind_latency: LatencyModel
) -> RequestRecords:
    """Records of whole requests: sent to the prefill pool, answered by the decode pool.

    ``replica``, ``first_token_s`` and what follows are the decode pool's, ``cached_tokens`` and
    ``reused_tokens`` the prefill pool's; tokens computed and preemptions are those of both.

    Raises:
        PinnError: If requests are left that a pool can never schedule.
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
    """Transfers as the decode pool's engine knows them.

    Args:
        behind: After the run.
        token_bytes: Of a token, over all GPUs of a decode worker.
    """
    r, config = behind.requests, behind.config
    tokens = r["moved"].astype(np.int64)
    link_s = tokens * max(config.transfer_token_s, config.source_token_s)
    times = (r["sent_s"], r["loading_s"], r["ready_s"], link_s + config.transfer_latency_s)
    left_s, loading_s, ready_s, link_s = (np.where(tokens > 0, each, np.nan) for each in times)
    return Transfers(left_s, loading_s, ready_s, tokens, link_s, tokens * token_bytes)


# Disaggregated prefill/decode: two pools of servers, one request after the other through both.
#
# As vLLM does it with a connector that pulls (``NixlConnector``) behind a proxy
# (``tests/v1/kv_connector/nixl_integration/toy_proxy_server.py``): the proxy asks a prefill
# server for one token, then a decode server for the whole answer. That one takes the prompt's
# keys and values from the prefill server, computes the prompt's last token again and with it the
# first token that the client sees.
#
# A second tier is the prefill servers' (in vLLM by MultiConnector, beside the connector between the
# pools): they have the prompts that come again. Decode servers have none.
#
# Assumed: the transfer follows the prefill and does not overlap it; the link of a prefill worker
# and that of a decode worker each carry one transfer at a time; a prompt's blocks are free on
# the prefill server when its step ends. SGLang and TensorRT-LLM hand the first token over beside
# the keys and values, so theirs is seen one decode step before.


@dataclass(frozen=True)
class Pool:
    """Servers alike that do one half of the work.

    Attributes:
        deployment: Model, GPU and flags of each.
        latency: Seconds for everything that takes time.
        engine: Further settings; ``replicas`` is the number of servers.
    """

    deployment: Deployment
    latency: LatencyModel
    engine: EngineSpec

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        return self.engine.replicas * self.deployment.recipe.data_parallel_size * self.ranks

    @property
    def ranks(self) -> int:
        """GPUs that hold one copy of the attention, each with a link of its own."""
        recipe = self.deployment.recipe
        return recipe.tensor_parallel_size * recipe.pipeline_parallel_size


@dataclass(frozen=True)
class Link:
    """The network between the pools.

    Attributes:
        bytes_per_s: Of each GPU, one direction; infinity for transfers that take no time.
        latency_s: Seconds before each transfer starts.
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
    """A simulated run of two pools.

    Attributes:
        prefill: The prefill pool's steps and KV cache, with the requests as clients see them.
        decode: Result of the decode pool, whose ITL is what clients see.
        transfers: Per request.
        link: Between the pools.
    """

    prefill: Run
    decode: Run
    transfers: Transfers
    link: Link


def default_link(prefill: Pool, decode: Pool) -> Link:
    """The network adapters of the GPUs, the slower ones where the pools differ."""
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
    """Serve a workload on a prefill and a decode pool, stepped together by one clock.

    Args:
        prefill: Servers that compute prompts.
        decode: Servers that generate.
        workload: What clients send, of any kind.
        link: Between the pools; by default as :func:`default_link`.
        compiled: Run in compiled code or not; by default whenever the latencies allow it.

    Raises:
        PinnError: As :func:`pinn.simulator.simulate.simulate`, or if the pools do not fit together.
    """
    _check_alike(prefill.deployment, decode.deployment)
    if (workload.transferred_tokens > 0).any():
        raise PinnError(
            f"workload {workload.name} has a column transferred_tokens, which "
            "describes transfers from separate prefill servers: leave it out, or "
            "--prefill and --decode"
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
    """Return the prefill servers' batches, and the decode servers', whose prompts are there.

    A request that asks for no output passes through both pools, as one of a single token.

    Raises:
        PinnError: If no request asks for any.
    """
    if not workload.output_tokens.any():
        raise PinnError(
            f"workload {workload.name} has no output tokens, so decode workers "
            "have nothing to do: leave --prefill and --decode out"
        )
    first = replace(workload, output_tokens=np.ones(len(workload), np.int64))
    return first, replace(workload, transferred_tokens=workload.prompt_tokens)


def _check_alike(prefill: Deployment, decode: Deployment) -> None:
    """Keys and values are taken over as they are."""
    for what, one, other in (
        ("model", prefill.model.name, decode.model.name),
        ("format of the KV cache", prefill.kv_cache_precision.name, decode.kv_cache_precision.name),
        ("--engine", prefill.serving.engine, decode.serving.engine),
        ("--block-size", prefill.recipe.block_tokens, decode.recipe.block_tokens),
    ):
        if one != other:
            raise PinnError(
                f"the prefill workers have the {what} {one}, the decode workers "
                f"{other}: the KV cache is transferred unchanged, so give both "
                "the same"
            )


def _join(
    ahead: Engine, behind: Engine, prefill: Pool, decode: Pool, link: Link, token_bytes: float
) -> None:
    """Give two engines their roles, and the links between them.

    Each GPU of a decode worker takes what it will hold; the GPUs of a prefill worker send as much
    together.
    """
    ahead.config.role, behind.config.role = PREFILLS, DECODES
    # A decode server has no prompts to compute apart, and starts what has arrived in its next step.
    behind.config.prefill_first = 0
    # Its clients are the prefill servers; how many at once is not its concern.
    behind.counters.next, behind.config.concurrency = behind.config.n_requests, 0
    token_s = token_bytes / link.bytes_per_s
    behind.config.transfer_token_s = token_s
    behind.config.source_token_s = token_s * decode.ranks / prefill.ranks
    behind.config.transfer_latency_s = link.latency_s
