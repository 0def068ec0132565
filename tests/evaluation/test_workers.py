"""Workers give the same results and errors in this process, in several, and on Ray."""

import os
import sys
from functools import partial
from pathlib import Path
from uuid import uuid4

import pandas as pd
import pytest
import worker_tasks
from left_out_experiment import observations
from worker_tasks import refuse, square_together, square_where

from pinn.common.workers import Workers
from pinn.errors import PinnError
from pinn.evaluation.crossvalidation import cells, compute, read_cells
from pinn.evaluation.methods import learned_network, roofline
from pinn.surrogate.architecture import NetworkSettings
from pinn.training.data.splits import leave_one_out
from pinn.training.serving_fit import STEPS_PER_EPOCH, ServingFitSettings, ServingLearner
from pinn.training.serving_rows import serving_rows
from pinn.training.trainer import TrainerSettings, make_trainer

NUMBERS = range(4)
SQUARES = {i: i**2 for i in NUMBERS}
#: Token of Ray; without one, Ray writes one into the home directory.
RAY_TOKEN = uuid4().hex


@pytest.fixture(scope="module")
def on_ray():
    """Return two workers of a Ray of their own, which ends with the run that started it."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[test]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", RAY_TOKEN)
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # another Ray, which is not used
        patch.setenv("PYTHONPATH", str(Path(worker_tasks.__file__).parent))
        workers = Workers("ray", 2)
        run = workers.run(square_where, NUMBERS)
        next(run)
        yield workers
        assert ray.is_initialized()
        run.close()
        assert not ray.is_initialized()


def run_together(workers, folder):
    """Return squares and the processes that computed them; no process computes them all."""
    folder.mkdir()
    done = dict(workers.run(square_together, [(i, folder) for i in NUMBERS]))
    return {i: square for i, (square, _) in done.items()}, {pid for _, pid in done.values()}


def test_one_worker_is_this_process():
    done = dict(Workers().run(square_where, NUMBERS))
    assert done == {i: (square, os.getpid(), Path.cwd()) for i, square in SQUARES.items()}


def test_two_processes_share_the_tasks(tmp_path):
    squares, processes = run_together(Workers(count=2), tmp_path / "met")
    assert squares == SQUARES
    assert len(processes - {os.getpid()}) == 2


def test_kept_processes_serve_several_runs(tmp_path):
    with Workers(count=2).kept("pinn.errors") as workers:
        found = [run_together(workers, tmp_path / name) for name in ("first", "second")]
    assert [squares for squares, _ in found] == [SQUARES, SQUARES]
    assert found[0][1] == found[1][1]


def test_two_workers_of_ray_share_the_tasks(on_ray, tmp_path):
    squares, processes = run_together(on_ray, tmp_path / "met")
    assert squares == SQUARES
    assert len(processes - {os.getpid()}) == 2


def test_ray_works_where_we_do(on_ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {folder for _, (_, _, folder) in on_ray.run(square_where, NUMBERS)} == {tmp_path}


def test_an_error_of_a_task_comes_through_ray(on_ray):
    with pytest.raises(PinnError, match=r"^task 1 is bad: give another one$"):
        list(on_ray.run(refuse, [1]))


def test_cells_made_on_ray_are_those_made_here(on_ray, tmp_path):
    pd.testing.assert_frame_equal(
        made_cells(on_ray, tmp_path / "ray"), made_cells(Workers(), tmp_path / "here")
    )


def made_cells(workers, folder):
    """Return predictions for every model by two methods that hold it out."""
    measured = observations()
    splits = {"leave-one-model-out": leave_one_out("model", measured)}
    learner = ServingLearner(
        NetworkSettings(hidden=8, depth=1),
        ServingFitSettings(steps=STEPS_PER_EPOCH),
        partial(make_trainer, TrainerSettings(progress=False)),
    )
    methods = [roofline(), learned_network("network", learner)]
    wanted = cells(splits, methods, folder, "mark")
    compute(serving_rows(measured), wanted, workers)
    made = read_cells(wanted)
    assert len(made) == 2 * len(measured)
    return made


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_of_a_task_comes_through(count):
    with pytest.raises(PinnError, match=r"^task 1 is bad: give another one$"):
        list(Workers(count=count).run(refuse, [1]))


def test_without_ray_the_error_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PinnError, match="needs the package Ray: run 'pip install ray'"):
        list(Workers("ray").run(square_where, [1]))


def test_unknown_backends_and_no_workers_are_refused():
    with pytest.raises(PinnError, match="give one of processes, ray"):
        Workers("threads")
    with pytest.raises(PinnError, match="workers must be at least 1, got 0"):
        Workers(count=0)
