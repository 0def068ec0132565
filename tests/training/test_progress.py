"""Training shows its progress: a bar for one fit, whole lines for folds."""

from types import SimpleNamespace

from pinn.kernels.exclusion import Exclusion
from pinn.training.folds import Fold, learn_all


def in_turn(_work, tasks):
    """As workers that are done at once."""
    return ((i, None) for i, _ in enumerate(tasks))


def test_folds_are_named_as_they_end(kernel_learner, rows, tmp_path, capsys):
    folds = [Fold(rows, (), Exclusion(gpus=("H100-SXM",))), Fold(rows, (), Exclusion())]
    learn_all(kernel_learner, folds, tmp_path, SimpleNamespace(run=in_turn))
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("fold 1 of 2: without h100-sxm, about ")
    assert last == "fold 2 of 2: all, the last one"
