"""Fits that are interrupted abruptly, and the check that networks do not depend on it."""

import lightning
import numpy as np

from pinn.training.trainer import TrainerSettings, make_trainer


class Interrupt(lightning.Callback):
    """Callback that stops a fit abruptly, in the middle of an epoch."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            raise RuntimeError("power cut")


def interrupted_trainer(step, **settings):
    """Return a trainer factory that raises when the optimizer has made so many steps."""
    trainer = make_trainer(TrainerSettings(progress=False), **settings)
    trainer.callbacks.append(Interrupt(step))
    return trainer


def assert_same_bits(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name].numpy(), b[name].numpy(), err_msg=name)
