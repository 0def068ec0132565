"""Traces of a server whose coefficients are known: written, ingested, calibrated."""

import random

import numpy as np
import pytest

from pinn.calibration.calibrate import calibrate_to
from pinn.calibration.identification import identify
from pinn.calibration.intervals import read_intervals
from pinn.calibration.requests import calibrate_alpha, read_requests
from pinn.coefficients.coefficients import prior_coefficients
from pinn.features.request import REQUEST_FEATURES
from pinn.features.step import STEP_FEATURES, step_features
from pinn.observations.cycles import accounting
from pinn.observations.ingestion import ingest_vllm
from pinn.observations.trace_run import Target
from pinn.observations.trace_tables import TraceTables
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.sources.traces.synthetic import Arrival, EngineLimits, run_engine
from pinn.sources.traces.writer import WriterOptions, write_traces
from pinn.specs.batch import Batch
from pinn.specs.serving import ServingSpec

#: Every step is launched alike: with graphs, the cost of launching large steps without them hides
#: part of their matrix products, which are then only just identified.
TARGET = Target(
    "meta-llama/Llama-3.1-8B",
    "H100",
    ServingSpec(max_num_batched_tokens=2048, max_num_seqs=128, enforce_eager=True),
)
BASE = prior_coefficients(1)
TRUE = BASE.beta[0] * np.random.default_rng(0).uniform(1.05, 1.6, BASE.beta.shape[1])

#: Seconds from arrival to the queue, and from the last token to the response's end.
HTTP_S = 4e-3
JITTER = 0.002


def arrivals(requests: int) -> list[Arrival]:
    """Calm and busy stretches in turn, lengths over orders of magnitude."""
    draw, now, found = random.Random(1), 0.0, []
    for i in range(requests):
        now += draw.expovariate(50 if (i // 100) % 2 else 10)
        prompt, output = (int(np.exp(draw.uniform(*span))) for span in ((4, 8.3), (1, 5.5)))
        found.append(Arrival(now, prompt, output))
    return found


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> TraceTables:
    """Every journey, one step in ten, steps that jitter, requests that lose their blocks."""
    folder = tmp_path_factory.mktemp("round_trip")
    draw, costs = np.random.default_rng(0), step_costs([TARGET.deployment()])

    def step_seconds(batch: Batch) -> float:
        exact = float((step_features(costs, sum_batches([batch])) @ TRUE)[0])
        return exact * float(np.exp(JITTER * draw.standard_normal()))

    run = run_engine(arrivals(1500), step_seconds, EngineLimits(blocks=3000))
    assert sum(step.preempted for step in run.steps) > 5
    write_traces(run, folder / "traces.json", WriterOptions(step_sampling=0.1, http_s=HTTP_S))
    return ingest_vllm(folder / "traces.json", folder / "tables", TARGET)


def test_identified_coefficients_come_back(traces: TraceTables) -> None:
    rows = read_intervals(traces, TARGET.deployment())
    assert accounting(traces.cycles)["set aside: preemption"] > 5
    found = calibrate_to(rows, BASE.beta[0])
    groups, names = identify(rows, found.base, found.beta), list(STEP_FEATURES)
    for group in groups:
        at = [names.index(name) for name in group.names]
        ours, truth = (
            float((rows.features[:, at] @ beta[at]).sum()) for beta in (found.beta, TRUE)
        )
        if group.is_identified:
            assert ours == pytest.approx(truth, rel=0.03), group.names
    identified = {name for g in groups if g.is_identified for name in g.names}
    assert {"gemm", "decode_attention", "kv_read"} <= identified
    before = rows.features @ BASE.beta[0] / rows.seconds - 1
    after = rows.features @ found.beta / rows.seconds - 1
    assert np.median(np.abs(before)) > 0.2
    assert np.median(np.abs(after)) < 2 * JITTER


def test_what_cannot_be_told_apart_is_named(traces: TraceTables) -> None:
    rows = read_intervals(traces, TARGET.deployment())
    found = calibrate_to(rows, BASE.beta[0])
    groups = identify(rows, found.base, found.beta)
    per_step = next(g for g in groups if "step" in g.names)
    assert {"step", "layer", "eager_layer", "gemm_weights"} <= set(per_step.names)
    # Tokens and requests make the arithmetic: three columns, two of which give the third.
    unsure = {name for g in groups if not g.is_identified for name in g.names}
    assert {"request", "activations", "gemm_compute"} <= unsure
    # Every request of one server samples alike.
    assert ("request", "sampling") in {g.names for g in groups if not g.is_identified}
    seen = {name for g in groups for name in g.names}
    assert "experts" not in seen
    place = list(STEP_FEATURES).index("experts")
    assert found.beta[place] == BASE.beta[0][place]


def test_overheads_of_requests_come_back(traces: TraceTables) -> None:
    beta = calibrate_to(read_intervals(traces, TARGET.deployment()), BASE.beta[0]).beta
    rows = read_requests(traces, TARGET.deployment(), beta)
    found = calibrate_alpha(rows, BASE.alpha[0])
    names = list(REQUEST_FEATURES)
    completion = found.alpha[names.index("completion.constant")]
    assert completion == pytest.approx(HTTP_S, rel=0.03)
    queue = rows.targets["arrival_to_queue"]
    predicted = rows.features @ np.where(
        [n.startswith("arrival_to_queue") for n in names], found.alpha, 0
    )
    assert np.nanmedian(predicted) == pytest.approx(np.nanmedian(queue), rel=0.5)
    # A wait ends with a step, so single ones are anything up to its length; their mean is known.
    known = np.isfinite(queue)
    assert predicted[known].mean() == pytest.approx(queue[known].mean(), rel=0.2)
    # The writer stamps first tokens when the step ends, so nothing is left beside the step itself.
    first_token = rows.targets["schedule_to_first_token"]
    own_step = np.nanmedian(rows.features[:, names.index("schedule_to_first_token.step_time")])
    assert np.nanmedian(np.abs(first_token)) < 0.1 * own_step
    untaught = dict(zip(names, found.taught, strict=True))
    assert untaught["completion.constant"]
    assert not untaught["preemption.constant"]
    assert not untaught["queue_to_schedule.chunked_prefill"]
    errors = found.errors.set_index(["phase", "method"])["error_s"]
    assert errors["completion", "calibrated"] < 0.1 * errors["completion", "before"]
