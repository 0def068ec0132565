"""Simulate a workload on a deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pinn.errors import PinnError
from pinn.latency.protocol import LatencyModel
from pinn.simulator.block_keys import block_keys
from pinn.simulator.engine import Engine, PlainEngine, new_engine
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.loop import BAD_STEP, FULL, advance, advance_compiled
from pinn.simulator.memory import KvLayout, kv_layout, max_model_len
from pinn.simulator.run import STATUS_NAMES, GapRuns, RequestRecords, Run, StepRecords
from pinn.simulator.state import FINISHED, REJECTED, REQUEST, UNSENT
from pinn.specs.deployment import Deployment
from pinn.workloads.workload import Workload

#: Requests beyond the running ones whose keys and values may be on their way.
_LOADING_SLOTS = 256
_NO_WINDOW = 1 << 40


def simulate(
    deployment: Deployment,
    workload: Workload,
    latency: LatencyModel,
    engine: EngineSpec | None = None,
    *,
    compiled: bool | None = None,
) -> Run:
    """Serve a workload on a simulated vLLM V1 engine.

    The run is a pure function of its arguments: nothing is drawn at random.

    Args:
        deployment: Model, GPU and serving configuration.
        workload: What clients send.
        latency: Seconds for everything that takes time. A ``LinearLatency`` runs compiled.
        engine: Further engine settings.
        compiled: Run in compiled code or not; by default whenever ``latency`` allows it.

    Raises:
        PinnError: If the model does not fit, a request exceeds max_model_len or the KV cache, a
            flag contradicts another, or the latency model gives a step no positive time.
    """
    engine = engine or EngineSpec()
    layout = kv_layout(deployment, engine)
    _check_flags(deployment)
    too_long = _too_long(deployment, workload, engine)
    _check_cache_holds(deployment, workload, layout, too_long)
    state = _engine(deployment, workload, engine, layout, too_long)
    steps, gaps = _run(state, latency, compiled)
    return Run(
        workload,
        _records(state, latency),
        steps,
        gaps,
        layout.blocks,
        deployment.serving.block_size,
        deployment.serving.data_parallel_size,
    )


def _run(
    engine: Engine, latency: LatencyModel, compiled: bool | None
) -> tuple[StepRecords, GapRuns]:
    if compiled is None:
        compiled = isinstance(latency, LinearLatency)
    if not compiled:
        plain = PlainEngine(engine)
        records = _collect(advance, plain, plain.arrays, latency, latency)
        plain.write_back(engine)
        return records
    if not isinstance(latency, LinearLatency):
        raise PinnError(f"only a LinearLatency runs compiled, got {type(latency).__name__}")
    return _collect(advance_compiled, engine.handle, engine.arrays, latency.compile(), latency)


def _collect(
    go: Callable[[Any, Any], int],
    state: Any,
    arrays: dict[str, Any],
    model: Any,
    latency: LatencyModel,
) -> tuple[StepRecords, GapRuns]:
    """Run to the end, emptying the record buffers whenever they are full."""
    token_s = float(latency.output_token_processing_time())
    steps, seconds, counts = [], [], []
    status = FULL
    while status == FULL:
        before = state.progress
        status = go(state, model)
        if status == FULL and state.progress == before:
            raise PinnError(
                f"the engine is stuck: {state.n_steps} steps generated no token; requests preempt "
                f"each other, because a KV cache of {state.blocks} blocks is full of others that "
                "wait for theirs"
            )
        steps.append(arrays["steps"][: state.n_steps].copy())
        seconds.append(arrays["gap_s"][: state.n_gaps] + token_s)
        counts.append(arrays["gap_count"][: state.n_gaps].copy())
        state.n_steps = state.n_gaps = 0
    if status == BAD_STEP:
        raise PinnError(
            f"the latency model gave a step {state.bad_step_s} s; it must be positive and finite "
            "for every batch"
        )
    return StepRecords(np.concatenate(steps)), GapRuns(
        np.concatenate(seconds), np.concatenate(counts)
    )


def _check_flags(deployment: Deployment) -> None:
    """``SchedulerConfig.verify_max_model_len``."""
    serving, longest = deployment.serving, max_model_len(deployment)
    if not serving.enable_chunked_prefill and serving.max_num_batched_tokens < longest:
        raise PinnError(
            f"--max-num-batched-tokens {serving.max_num_batched_tokens} is smaller than "
            f"--max-model-len {longest} and chunked prefill is off: raise the one, lower the "
            "other, or leave chunked prefill on"
        )


def _too_long(deployment: Deployment, workload: Workload, engine: EngineSpec) -> np.ndarray:
    """Requests that the server answers with an error (``OpenAIServing._validate_input``)."""
    longest = max_model_len(deployment)
    total = workload.prompt_tokens + workload.output_tokens
    too_long = total > longest
    if too_long.any() and not engine.reject_long_requests:
        r = int(np.flatnonzero(too_long)[0])
        raise PinnError(
            f"request {r} has {workload.prompt_tokens[r]} prompt and {workload.output_tokens[r]} "
            f"output tokens, {total[r]} together, more than --max-model-len {longest} "
            f"({int(too_long.sum())} of {len(workload)} requests do): raise it or shorten them"
        )
    return too_long


def _check_cache_holds(
    deployment: Deployment, workload: Workload, layout: KvLayout, too_long: np.ndarray
) -> None:
    tokens = np.where(too_long, 0, workload.prompt_tokens + workload.output_tokens)
    size = deployment.serving.block_size
    needed = int(layout.request_blocks(tokens.max(), size))
    if needed > layout.blocks:
        raise PinnError(
            f"request {int(tokens.argmax())} needs {needed} KV cache blocks of {size} tokens for "
            f"its {int(tokens.max())} tokens, the GPU has room for {layout.blocks}"
        )


def _engine(
    deployment: Deployment,
    workload: Workload,
    spec: EngineSpec,
    layout: KvLayout,
    too_long: np.ndarray,
) -> Engine:
    serving = deployment.serving
    keys, first_key, n_keys = np.zeros(0, np.int32), np.zeros(len(workload), np.int64), 0
    if serving.enable_prefix_caching:
        keys, first_key, n_keys = block_keys(workload, serving.block_size)
    requests = np.zeros(len(workload), REQUEST)
    for name, column in (
        ("prompt", workload.prompt_tokens),
        ("output", workload.output_tokens),
        ("stage", workload.stage),
        ("transferred", np.minimum(workload.transferred_tokens, workload.prompt_tokens)),
        ("offset_s", workload.offset_s),
        ("timeout_s", workload.timeout_s),
        ("first_key", first_key),
        ("status", np.where(too_long, REJECTED, UNSENT)),
    ):
        requests[name] = column
    requests["slot"] = -1
    for name in ("handed_s", "queued_s", "scheduled_s", "first_s"):
        requests[name] = -1.0
    starts = workload.stage_starts_s if not workload.stages_wait else (workload.stage_starts_s[0],)
    sizes = np.bincount(workload.stage, minlength=workload.stages).astype(np.int64)
    given = {
        "requests": requests,
        "keys": keys,
        "stage_starts_s": np.array(starts, np.float64),
        "stage_sizes": sizes,
    }
    return new_engine(_settings(deployment, workload, spec, layout), given, n_keys)


def _settings(
    deployment: Deployment, workload: Workload, spec: EngineSpec, layout: KvLayout
) -> dict[str, float]:
    serving = deployment.serving
    pipeline, replicas = serving.pipeline_parallel_size, serving.data_parallel_size
    seqs = min(serving.max_num_seqs, len(workload), serving.max_num_batched_tokens)
    totals, size = workload.prompt_tokens + workload.output_tokens, serving.block_size
    bytes_per_token = layout.block_bytes / size * layout.full_groups
    return {
        "max_tokens": serving.max_num_batched_tokens,
        "max_seqs": seqs,
        "max_model_len": max_model_len(deployment),
        "block_size": size,
        # With a block for every token ever sent nothing is evicted, so more make no difference.
        "blocks": min(layout.blocks, int(layout.request_blocks(totals, size).sum())),
        "cache_blocks": layout.blocks,
        "row": int(layout.request_blocks(totals.max(), size)) + 1,
        "slots": seqs + min(_LOADING_SLOTS, int((workload.transferred_tokens > 0).sum())),
        "long_prefill": spec.long_prefill_token_threshold,
        "window": deployment.model.window_tokens or _NO_WINDOW,
        "full_groups": layout.full_groups,
        "window_groups": layout.window_groups,
        "window_blocks": layout.window_blocks,
        "caching": serving.enable_prefix_caching,
        "chunked": serving.enable_chunked_prefill,
        "asynchronous": spec.async_scheduling,
        "depth": pipeline if pipeline > 1 else 1 + spec.async_scheduling,
        "pipeline": pipeline,
        "n_replicas": replicas,
        "n_groups": 1 if deployment.model.moe is not None else replicas,
        "least_loaded": spec.data_parallel_routing == "least_loaded",
        "tensor_parallel": serving.tensor_parallel_size,
        "concurrency": workload.concurrency or 0,
        "stages_wait": workload.stages_wait,
        "stage_gap_s": workload.stage_gap_s,
        "transfer_latency_s": spec.kv_transfer_latency_s,
        "transfer_token_s": bytes_per_token / spec.kv_transfer_bytes_per_s,
    }


def _records(state: Engine, latency: LatencyModel) -> RequestRecords:
    r = state.arrays["requests"]
    stuck = np.flatnonzero(~np.isin(r["status"], list(STATUS_NAMES)))
    if len(stuck):
        raise PinnError(
            f"the engine is stuck: {len(stuck)} requests can never be scheduled, the first is "
            f"request {stuck[0]}; transferred keys and values fill the KV cache"
        )
    token_s = float(latency.output_token_processing_time())
    completion_s = float(latency.post_decode_fixed_overhead())
    finished, started = r["status"] == FINISHED, r["generated"] > 0
    after = r["scheduling_s"] + r["preemption_s"] + r["output"] * token_s + completion_s
    first = r["first_s"] + r["scheduling_s"] + r["early_preemption_s"] + token_s
    return RequestRecords(
        status=np.array([STATUS_NAMES.get(s, "") for s in range(REJECTED + 1)])[r["status"]],
        stage=r["stage"].astype(np.int64),
        replica=r["replica"].astype(np.int64),
        prompt_tokens=r["prompt"].astype(np.int64),
        output_tokens=r["generated"].astype(np.int64),
        cached_tokens=r["cached"].astype(np.int64),
        reused_tokens=r["reused"].astype(np.int64),
        computed_tokens=r["worked"].copy(),
        preemptions=r["preemptions"].astype(np.int64),
        arrival_s=r["sent_s"].copy(),
        handed_s=_when(r["handed_s"]),
        queued_s=_when(r["queued_s"]),
        scheduled_s=_when(r["scheduled_s"]),
        first_token_s=np.where(started, first, np.nan),
        finish_s=r["last_s"] + np.where(finished, after, 0.0),
        engine_first_token_s=_when(r["first_s"]),
        engine_finish_s=np.where(finished, r["last_s"], np.nan),
        completion_s=completion_s,
    )


def _when(seconds: np.ndarray) -> np.ndarray:
    return np.where(seconds < 0, np.nan, seconds)
