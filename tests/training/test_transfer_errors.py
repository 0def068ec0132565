"""The script that says how well the network repeats its teacher."""

from pathlib import Path

import transfer_errors

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


def test_the_shipped_network_repeats_its_teacher_where_neither_was_trained():
    found = transfer_errors.errors(
        CHECKPOINTS / "pinn.safetensors", CHECKPOINTS / "kernels", ["H100-SXM", "B200-SXM"], 24
    ).set_index("")
    assert set(found["steps"]) == {24 * 96}
    assert found.loc["network against teacher", "mean %"] < 4
    assert found.loc["basis against composed kernels", "mean %"] < 4
