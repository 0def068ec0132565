"""Traces of a made-up server, read into tables."""

from __future__ import annotations

import random
from pathlib import Path

from synthetic_engine import Arrival, EngineLimits, run_engine
from trace_writer import WriterOptions, write_traces

from pinn.measurements.traces.ingestion import ingest_vllm
from pinn.measurements.traces.trace_tables import Target
from pinn.specs.serving import ServingSpec


def served_traces(folder: Path, requests: int) -> Path:
    """Tables of an 8B model in fp8 on an H100 whose steps take 4.5 ms and 30 us per request."""
    draw, now, arrivals = random.Random(0), 0.0, []
    for _ in range(requests):
        now += draw.expovariate(20)
        arrivals.append(Arrival(now, draw.randint(50, 900), draw.randint(10, 60)))
    run = run_engine(
        arrivals, lambda batch: 4.5e-3 + 3e-5 * len(batch), EngineLimits(blocks=31_868)
    )
    write_traces(run, folder / "traces.json", WriterOptions(step_sampling=0.5))
    serving = ServingSpec(max_num_batched_tokens=2048, max_num_seqs=128)
    target = Target("meta-llama/Llama-3.1-8B", "H100", serving, precision="fp8")
    return ingest_vllm(folder / "traces.json", folder / "served", target).folder
