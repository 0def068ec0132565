import pytest

from pinn.engines.configurations import make_deployments, parse_grid
from pinn.export.configured import Configured, from_checkpoint


@pytest.fixture(scope="session")
def configured(checkpoint_path) -> Configured:
    """Return a few configurations with the coefficients of a small network."""
    grid = (
        "model=meta-llama/Llama-3.1-8B,mistralai/Mixtral-8x7B-v0.1,google/gemma-2-9b gpu=H100,L40S "
        "tensor_parallel_size=1,2"
    )
    kept, deployments, _ = make_deployments(parse_grid(grid))
    return from_checkpoint(checkpoint_path, kept, deployments)
