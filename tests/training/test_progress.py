"""Training says which fold and epoch it is at, in whole lines."""

from types import SimpleNamespace

import torch
from lightning import LightningModule

from pinn.common import progress
from pinn.kernels.exclusion import Exclusion
from pinn.training.kernel_learner import Fold, learn_all
from pinn.training.trainer import make_trainer


class Nothing(LightningModule):
    """Learns one number."""

    def __init__(self):
        super().__init__()
        self.number = torch.nn.Parameter(torch.ones(()))
        self.told = []

    def training_step(self, _batch):
        self.told.append(progress._WORK.text)
        return self.number**2

    def configure_optimizers(self):
        return torch.optim.SGD([self.number], lr=0.1)


def test_epochs_are_told_without_a_bar(tmp_path, capfd):
    module = Nothing()
    make_trainer(max_epochs=2, folder=tmp_path).fit(module, [torch.zeros(1)])
    assert module.told == ["learning, epoch 1 of 2", "learning, epoch 2 of 2"]
    said = capfd.readouterr()
    assert "\r" not in said.out + said.err
    assert "v_num" not in said.out + said.err


def in_turn(_work, tasks):
    """As workers that are done at once."""
    return ((i, None) for i, _ in enumerate(tasks))


def test_folds_are_named_as_they_end(kernel_learner, rows, tmp_path, caplog):
    folds = [Fold(rows, (), Exclusion(gpus=("H100-SXM",))), Fold(rows, (), Exclusion())]
    caplog.set_level("INFO", "pinn")
    learn_all(kernel_learner, folds, tmp_path, SimpleNamespace(run=in_turn))
    first, last = caplog.messages
    assert first.startswith("fold 1 of 2: without h100-sxm")
    assert last.startswith("fold 2 of 2: all")
