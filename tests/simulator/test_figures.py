"""Figures of stages against plain numpy."""

import numpy as np
import pytest
from simulator_helpers import load, play

from pinn.errors import PinnError
from pinn.simulator.metric_features import failed_share, figure_requests, figure_seconds


@pytest.fixture(scope="module")
def run():
    draw = np.random.default_rng(0)
    offsets = np.concatenate([np.sort(draw.uniform(0, 50, 20)), np.sort(draw.uniform(0, 20, 20))])
    stages = [0] * 20 + [1] * 20
    workload = load([8] * 40, [4] * 40, offsets, stage=stages, stage_starts_s=(0.0, 100.0))
    return play(workload).run


@pytest.mark.parametrize("stage", ["0", "1", "all"])
def test_means_and_percentiles(run, stage):
    r = run.requests
    mine = np.ones(40, bool) if stage == "all" else r.stage == int(stage)
    assert figure_seconds(run, stage, "e2e_mean_s") == pytest.approx(r.e2e_s[mine].mean())
    p90 = np.percentile(r.ttft_s[mine], 90)
    assert figure_seconds(run, stage, "ttft_p90_s") == pytest.approx(p90)
    gaps = (r.e2e_s - r.ttft_s)[mine].mean() / 3
    assert figure_seconds(run, stage, "itl_mean_s") == pytest.approx(gaps)


def test_a_percentile_rests_on_the_requests_around_it(run):
    r = run.requests
    around = figure_requests(run, "all", "e2e_p90_s")
    assert 0 < around.sum() < 40
    assert abs(r.e2e_s[around] - np.percentile(r.e2e_s, 90)).max() <= 1.0
    assert figure_requests(run, "1", "e2e_mean_s").sum() == 20


@pytest.mark.parametrize("figure", ["ttft_p50_s", "e2e_p50_s", "e2e_p90_s", "ttft_p99_s"])
def test_a_percentile_of_few_requests_rests_on_its_neighbours(run, figure):
    seconds = getattr(run.requests, f"{figure.split('_')[0]}_s")
    around = figure_requests(run, "0", figure)
    assert around.any()
    value = figure_seconds(run, "0", figure)
    assert seconds[around].min() - 1e-9 <= value <= seconds[around].max() + 1e-9


def test_clients_that_gave_up_are_counted_and_left_out():
    workload = load([8, 8], [4, 4], [0.0, 0.0], timeout_s=[1000.0, 1.5])
    lost = play(workload).run
    assert failed_share(lost, "all") == 0.5
    assert figure_seconds(lost, "all", "e2e_mean_s") == pytest.approx(lost.requests.e2e_s[0])


def test_unknown_figures_are_refused(run):
    for figure in ("speed_mean_s", "e2e_max_s"):
        with pytest.raises(PinnError, match=f"the metric '{figure}' is unknown: use"):
            figure_seconds(run, "all", figure)
