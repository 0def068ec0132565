"""Traces of a server with known coefficients: written, ingested, calibrated."""

import random
from dataclasses import dataclass
from functools import cached_property

import jaxtyping
import numpy as np
import pytest
from assumed_priors import beta_prior, prior_coefficients
from synthetic_engine import Arrival, EngineLimits, run_engine
from trace_writer import WriterOptions, write_traces

from pinn.calibration.alpha import calibrate_alpha
from pinn.calibration.calibrate import (
    Intervals,
    calibrate_to,
    read_intervals,
)
from pinn.calibration.posterior import Posterior, scalar_quantities, step_quantities
from pinn.calibration.prior import all_features, assumed_prior
from pinn.calibration.requests import read_requests
from pinn.measurements.traces.cycles import accounting
from pinn.measurements.traces.ingestion import ingest_vllm
from pinn.measurements.traces.trace_tables import Target, TraceTables
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.specs.batch import Batch
from pinn.specs.serving import ServingSpec
from pinn.surrogate.request_features import REQUEST_FEATURES, phase_mask
from pinn.surrogate.step_features import step_features, step_time


@dataclass(frozen=True)
class Server:
    """Server whose coefficients are known.

    Attributes:
        eager: Whether every step is launched without CUDA graphs. With graphs, launching large
            steps without them costs as much as part of their matrix products, and runs of 600
            requests do not tell the two apart.
        jitter: Standard deviation of the logarithm of a step's time.
        requests: Number of requests that it serves.
        seed: Seed of the jitter and of the choice of written steps.
    """

    eager: bool
    jitter: float
    requests: int
    seed: int

    @property
    def target(self) -> Target:
        serving = ServingSpec(
            max_num_batched_tokens=2048, max_num_seqs=128, enforce_eager=self.eager
        )
        return Target("meta-llama/Llama-3.1-8B", "H100", serving)


@dataclass(frozen=True)
class Traced:
    """Data that are read back from a server's traces."""

    server: Server
    tables: TraceTables

    @cached_property
    def rows(self) -> Intervals:
        return read_intervals(self.tables, self.server.target.deployment(), BASE.beta[0])

    @cached_property
    def found(self) -> Posterior:
        return calibrate_to(self.rows, beta_prior(BASE.beta[0]))


SERVERS = {
    "eager": Server(True, 0.002, 1500, 0),
    **{f"graphs-{seed}": Server(False, 0.005, 600, seed) for seed in range(2)},
}

BASE = prior_coefficients(1)
TRUE = BASE.beta[0] * np.random.default_rng(0).uniform(1.05, 1.6, BASE.beta.shape[1])

#: Seconds from arrival to the queue, and from the last token to the response's end.
HTTP_S = 4e-3


def arrivals(requests: int) -> list[Arrival]:
    """Return arrivals in calm and busy stretches in turn, with lengths over orders of magnitude."""
    draw, now, found = random.Random(1), 0.0, []
    for i in range(requests):
        now += draw.expovariate(50 if (i // 100) % 2 else 10)
        prompt, output = (int(np.exp(draw.uniform(*span))) for span in ((4, 8.3), (1, 5.5)))
        found.append(Arrival(now, prompt, output))
    return found


@pytest.fixture(scope="module", params=SERVERS)
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """Return traces of every journey, one step in ten, with jitter and preemption."""
    folder, server = tmp_path_factory.mktemp("round_trip"), SERVERS[request.param]
    draw, costs = np.random.default_rng(server.seed), step_costs([server.target.deployment()])

    def step_seconds(batch: Batch) -> float:
        exact = float(step_time(step_features(costs, sum_batches([batch])), TRUE)[0])
        return exact * float(np.exp(server.jitter * draw.standard_normal()))

    with pytest.MonkeyPatch.context() as patch:
        # Checking shapes anew in each of thousands of steps would take nine tenths of the time.
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        run = run_engine(arrivals(server.requests), step_seconds, EngineLimits(blocks=3000))
    assert sum(step.preempted for step in run.steps) > 5
    options = WriterOptions(step_sampling=0.1, http_s=HTTP_S, seed=server.seed)
    write_traces(run, folder / "traces.json", options)
    tables = ingest_vllm(folder / "traces.json", folder / "tables", server.target)
    return Traced(server, tables)


def test_what_is_determined_comes_back(traced: Traced) -> None:
    """Check factors and the costs of a decode step within three of their stated standard errors."""
    rows, found = traced.rows, traced.found
    assert accounting(traced.tables.cycles)["set aside: preemption"] > 5
    prior = beta_prior(BASE.beta[0])
    truth = np.concatenate([TRUE, BASE.alpha[0] * 0])
    exact = Posterior(truth, 0 * prior.covariance, found.noise)
    features = all_features(rows.features)
    ours, theirs = (
        [*scalar_quantities(prior, p, features),
         *step_quantities(traced.server.target.deployment(), prior, p, 16.0, 1000.0)]
        for p in (found, exact)
    )  # fmt: skip
    assert sum(q.is_determined for q in ours) >= 3
    for quantity, true in zip(ours, theirs, strict=True):
        assert abs(quantity.after - true.after) < 3 * quantity.after_error, (quantity, true.after)


def test_step_times_come_back(traced: Traced) -> None:
    """Check step times to less than a step's own jitter, which windows of several steps average."""
    rows = traced.rows
    before = rows.features @ BASE.beta[0] / rows.seconds - 1
    after = rows.features @ traced.found.beta / rows.seconds - 1
    assert np.median(np.abs(before)) > 0.1
    assert np.median(np.abs(after)) < traced.server.jitter / 2


def test_overheads_of_requests_come_back(traced: Traced) -> None:
    rows = read_requests(traced.tables, traced.server.target.deployment(), traced.found.beta)
    before = assumed_prior(np.concatenate([traced.found.beta, BASE.alpha[0]]))
    found = calibrate_alpha(rows, before)
    names = list(REQUEST_FEATURES)
    completion = found.posterior.alpha[names.index("completion.constant")]
    assert completion == pytest.approx(HTTP_S, rel=0.03)
    # A wait ends with a step, so single waits are anything up to its length; their mean is known.
    queue = rows.targets["arrival_to_queue"]
    predicted = rows.features @ (found.posterior.alpha * phase_mask("arrival_to_queue"))
    predicted += found.waits["arrival_to_queue"] * rows.waits["arrival_to_queue"]
    known = np.isfinite(queue)
    assert known.mean() > 0.9
    assert predicted[known].mean() == pytest.approx(queue[known].mean(), rel=0.05)
    # The remaining time of the step in flight is no work of the API server.
    spread = np.sqrt(np.diag(found.posterior.covariance))[-len(names) :]
    constant = names.index("arrival_to_queue.constant")
    own_step = np.nanmedian(rows.waits["schedule_to_first_token"])
    assert abs(found.posterior.alpha[constant] - HTTP_S) < 2 * spread[constant] < 0.08 * own_step
    assert found.waits["arrival_to_queue"] == pytest.approx(0.5, abs=0.05)
    # The writer stamps first tokens when the step ends, so no time is left beside the step itself.
    first_token = rows.targets["schedule_to_first_token"]
    assert np.nanmedian(np.abs(first_token)) < 0.1 * own_step
    untaught = dict(zip(names, found.taught, strict=True))
    assert untaught["completion.constant"]
    assert not untaught["preemption.constant"]
    errors = found.errors.set_index(["phase", "method"])["error_s"]
    assert errors["completion", "calibrated"] < 0.1 * errors["completion", "before"]
