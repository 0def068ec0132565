"""Shapes and types are checked in the tests only, by jaxtyping and beartype."""

from jaxtyping import install_import_hook

_CHECKED = ("physics", "features", "embedding", "network", "coefficients", "latency", "training")
install_import_hook([f"pinn.{part}" for part in _CHECKED], "typechecker.check")

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from pinn.embedding.descriptors import embed  # noqa: E402
from pinn.network.coefficient_network import CoefficientNetwork, NetworkSettings  # noqa: E402
from pinn.network.scaling import fit_scale  # noqa: E402
from pinn.specs.catalog import load_model  # noqa: E402
from pinn.specs.deployment import Deployment  # noqa: E402
from pinn.specs.gpu_catalog import load_gpu  # noqa: E402
from pinn.specs.serving import ServingSpec  # noqa: E402

torch.set_num_threads(1)
hypothesis.settings.register_profile(
    "pinn",
    deadline=None,
    derandomize=True,
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("pinn")


@pytest.fixture
def llama_8b_h100() -> Deployment:
    """Llama-3.1-8B in bf16 on one H100."""
    return Deployment(load_model("meta-llama/Llama-3.1-8B"), load_gpu("H100"), ServingSpec())


@pytest.fixture
def untrained(llama_8b_h100: Deployment) -> CoefficientNetwork:
    """A network that gives the priors, scaled around one deployment."""
    scale = fit_scale(*embed([llama_8b_h100]))
    return CoefficientNetwork(NetworkSettings(), scale).double().requires_grad_(False)
