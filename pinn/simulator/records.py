"""The records of a run, read off the engine's final state."""

from __future__ import annotations

import numpy as np

from pinn.coefficients.protocol import LatencyModel
from pinn.errors import PinnError
from pinn.physics.request import RequestState
from pinn.simulator.engine import Engine
from pinn.simulator.run import STATUS_NAMES, RequestRecords
from pinn.simulator.state import FINISHED, REJECTED


def read_records(state: Engine, latency: LatencyModel) -> RequestRecords:
    """What happened to every request.

    Raises:
        PinnError: If requests are left that the engine can never schedule.
    """
    r = state.arrays["requests"]
    stuck = np.flatnonzero(~np.isin(r["status"], list(STATUS_NAMES)))
    if len(stuck):
        raise PinnError(
            f"the engine is stuck: {len(stuck)} requests can never be scheduled, the first is "
            f"request {stuck[0]}; transferred keys and values fill the KV cache"
        )
    completion_s = float(latency.post_decode_fixed_overhead())
    finished, started = r["status"] == FINISHED, r["generated"] > 0
    last = r["last_sent_s"] + (r["scheduling_s"] + r["preemption_s"] + completion_s)
    first = r["first_sent_s"] + r["scheduling_s"] + r["early_preemption_s"]
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
        finish_s=np.where(finished, last, r["last_s"]),
        engine_first_token_s=_when(r["first_s"]),
        engine_finish_s=np.where(finished, r["last_s"], np.nan),
        early_preemptions=r["early_preemptions"].copy(),
        recomputed_tokens=r["recomputed"].copy(),
        early_recomputed_tokens=r["early_recomputed"].copy(),
        arrival_state=_state(state, "sent"),
        start_state=_state(state, "start"),
        handed_work=_work(state, "handed"),
        first_work=_work(state, "first"),
        last_work=_work(state, "last"),
        drafted_tokens=r["drafted"].copy(),
        accepted_tokens=r["accepted"].copy(),
        completion_s=completion_s,
    )


def _work(engine: Engine, when: str) -> np.ndarray:
    """The API server's requests, prompt tokens and streamed tokens, ``[requests, 3]``."""
    r = engine.arrays["requests"]
    return np.stack([r[f"{when}_{what}"] for what in ("requests", "prompt_tokens", "streamed")], 1)


def _state(engine: Engine, when: str) -> RequestState:
    """The situation of every request at one moment of its life."""
    r, record = engine.arrays["requests"], engine.record[0]
    prompt = r["prompt"].astype(np.float64)
    known = np.ones(len(r))
    return RequestState(
        prompt_tokens=prompt,
        step_time_s=r[f"{when}_step_s"].copy(),
        queue_share=r[f"{when}_queue_share"].copy(),
        kv_usage=r[f"{when}_kv_usage"].copy(),
        prompt_share=prompt / record["max_model_len"],
        inverse_tensor_parallel=known / record["tensor_parallel"],
        prefix_caching=known * record["caching"],
        chunked_prefill=known * record["chunked"],
        recomputed_tokens=prompt,
    )


def _when(seconds: np.ndarray) -> np.ndarray:
    return np.where(seconds < 0, np.nan, seconds)
