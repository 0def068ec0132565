"""Training shows the fold that it is at, in whole lines."""

from pinn.common.workers import Workers
from pinn.kernels.exclusion import Exclusion
from pinn.training.folds import Fold, learn_all


class Idle(Workers):
    """Workers that finish at once."""

    def run(self, _work, tasks):
        return ((i, None) for i, _ in enumerate(tasks))


def test_folds_are_named_as_they_end(kernel_learner, rows, tmp_path, caplog):
    caplog.set_level("INFO", "pinn")
    folds = [Fold(rows, (), Exclusion(gpus=("H100-SXM",))), Fold(rows, (), Exclusion())]
    learn_all(kernel_learner, folds, tmp_path, Idle())
    first, last = caplog.messages
    assert first.startswith("fold 1 of 2: without h100-sxm")
    assert last.startswith("fold 2 of 2: all")
