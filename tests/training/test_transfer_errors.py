"""Script that measures how well the network repeats its teacher."""

from pathlib import Path

import transfer_errors

from pinn.specs.gpu import load_gpu
from pinn.training.synthetic import catalog_models, synthetic_deployments

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


def errors(deployments):
    return transfer_errors.errors(
        CHECKPOINTS / "pinn.safetensors", CHECKPOINTS / "kernels", deployments
    ).set_index("")


def test_the_shipped_network_repeats_its_teacher_where_neither_was_trained():
    gpus = [load_gpu(name) for name in ("H100-SXM", "B200-SXM")]
    found = errors(synthetic_deployments(24, gpus, transfer_errors.SEED))
    assert set(found["steps"]) == {24 * 96}
    assert found.loc["network against teacher", "mean %"] < 4
    assert found.loc["basis against composed kernels", "mean %"] < 4


def test_the_shipped_network_repeats_its_teacher_on_every_known_model():
    deployments = transfer_errors.catalogued(["H200-SXM"])
    names = [deployment.model.name for deployment in deployments]
    assert len(names) == len(set(names)) > 0.9 * len(catalog_models())
    found = errors(deployments).loc["network against teacher"]
    assert found["median %"] < 2
    assert found["p90 %"] < 4
