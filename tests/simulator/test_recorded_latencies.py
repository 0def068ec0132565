"""TTFT and TPOT of real traffic against running requests and prompt length, where nothing waits.

Two replicas of Qwen3-32B on one H200 each, recorded at each request's arrival. Output lengths were
not: those here make as many requests run, and hold as much KV cache, as in the recordings.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pinn.common.files import find_checkpoint
from pinn.engines.deployment import Deployment
from pinn.simulator.linear_latency import latency_from_checkpoint
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import POISSON, Stage, stage_arrivals, stage_starts
from pinn.simulator.workloads.workload import Workload
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

#: Recording -> requests/s of each replica, and mean outputs of short and of long prompts.
RECORDED = {
    "sharegpt-h200": ((0.5, 1, 2, 4, 8), 120, 120),
    "bimodal-h200": ((0.5, 1), 514, 138),
}
PROMPTS, RUNNING = [0, 1000, 4000, 7000, 10_000, 13_000], [0, 2, 4, 8, 16, 32]
LEAST = 10


@pytest.fixture(scope="module")
def traces():
    if "PINN_LLMD_TRACES" not in os.environ:
        pytest.skip("set PINN_LLMD_TRACES to the folder of recorded traffic")
    return Path(os.environ["PINN_LLMD_TRACES"])


def recorded(path):
    with gzip.open(path, "rt") as lines:
        rows = pd.DataFrame(map(json.loads, lines))
    return rows[rows["num_request_waiting"] == 0].rename(
        columns={
            "input_token_length": "prompt", "num_request_running": "running",
            "actual_ttft_ms": "ttft", "actual_tpot_ms": "tpot",
        }
    )  # fmt: skip


def simulated(lengths, rates, outputs):
    serving = ServingSpec(max_model_len=16_384, enable_prefix_caching=False)
    server = Deployment(load_model("Qwen/Qwen3-32B"), load_gpu("H200"), serving)
    rng, lasts = np.random.default_rng(0), 1500.0
    offset, stage = stage_arrivals([Stage(rate, lasts) for rate in rates], POISSON, rng)
    prompt = rng.choice(lengths, len(offset))
    output = np.where(prompt < PROMPTS[1], *outputs)
    starts = stage_starts([lasts] * len(rates), offset, stage)
    load = Workload("recorded", prompt, output, offset, stage, stage_starts_s=starts)
    r = simulate(server, load, latency_from_checkpoint(server, find_checkpoint(None))).requests
    begun, ended = np.sort(r.scheduled_s), np.sort(r.finish_s)
    counts = [np.searchsorted(each, r.arrival_s, "right") for each in (begun, ended)]
    rows = pd.DataFrame({"prompt": prompt, "running": counts[0] - counts[1]})
    rows["ttft"], rows["tpot"] = 1000 * r.ttft_s, 1000 * r.mean_itl_s
    return rows[np.arange(len(r)) == counts[0]]  # where all before it had begun


def medians(rows, metric):
    known = rows[rows[metric] > 0]
    cells = [
        pd.cut(known["prompt"], PROMPTS).rename("prompt"),
        pd.cut(known["running"], RUNNING, right=False).rename("running"),
    ]
    found = known.groupby(cells, observed=True)[metric].agg(["median", "size"])
    return found.loc[found["size"] >= LEAST, "median"]


@pytest.mark.parametrize("name", RECORDED)
def test_latencies_are_those_of_real_traffic_within_15_percent(traces, name):
    real = recorded(traces / f"{name}.jsonl.gz")
    rates, *outputs = RECORDED[name]
    mine = simulated(real["prompt"].to_numpy(), rates, outputs)
    for metric in ("ttft", "tpot"):
        ratio = (medians(mine, metric) / medians(real, metric)).dropna()
        assert len(ratio) >= 5, metric
        assert (ratio - 1).abs().median() < 0.15, (metric, ratio)
