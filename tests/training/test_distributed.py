"""Lightning's strategies: several processes learn the same as one."""

from dataclasses import replace
from functools import partial

import numpy as np

from pinn.training.serving_fit import STEPS_PER_EPOCH, predict
from pinn.training.trainer import TrainerSettings, make_trainer


def test_two_processes_fit_what_one_fits(rows, learner, tmp_path):
    """Check equality: each process has all rows, so the mean of their gradients is that of one."""
    brief = replace(learner, fit=replace(learner.fit, steps=STEPS_PER_EPOCH))
    two = partial(make_trainer, TrainerSettings(devices=2, strategy="ddp_spawn", progress=False))
    alone, together = (
        predict(of.learn(rows, tmp_path / name), rows)
        for name, of in (("one", brief), ("two", replace(brief, trainer=two)))
    )
    np.testing.assert_allclose(together.tpot_s, alone.tpot_s, rtol=1e-9)
    np.testing.assert_allclose(together.ttft_s, alone.ttft_s, rtol=1e-9)
    assert (tmp_path / "two" / "last.ckpt").is_file()
