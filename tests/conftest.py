"""Shapes and types are checked in the tests only, by jaxtyping and beartype."""

import gc
from pathlib import Path

import jaxtyping
import typechecker

_ROOT = Path(__file__).parents[1]
#: Every module that names a shape, but those that numba compiles: it takes functions as written.
_SHAPED = [
    ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    for path in sorted(_ROOT.glob("pinn/*/**/*.py"))
    if "from jaxtyping import" in (text := path.read_text())
    and "pinn.simulator.compiler" not in text
]
_WHOLE = [f"pinn.{part}" for part in ("physics", "surrogate", "calibration", "training", "export")]
jaxtyping.jaxtyped = typechecker.jaxtyped  # type: ignore[assignment]
jaxtyping.install_import_hook([*_WHOLE, *_SHAPED], "typechecker.check")

from dataclasses import replace  # noqa: E402

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from pinn.engines.deployment import Deployment  # noqa: E402
from pinn.kernels.surrogates import OPERATORS, KernelSurrogates  # noqa: E402
from pinn.kernels.tables.tables import read_kernel_tables  # noqa: E402
from pinn.specs.catalog import load_model  # noqa: E402
from pinn.specs.gpu import load_gpu  # noqa: E402
from pinn.specs.serving import ServingSpec  # noqa: E402
from pinn.surrogate.architecture import NetworkSettings  # noqa: E402
from pinn.surrogate.checkpoint import Checkpoint, save_checkpoint  # noqa: E402
from pinn.surrogate.featurizer import featurize, fit_scale  # noqa: E402
from pinn.surrogate.network import CoefficientNetwork  # noqa: E402
from pinn.surrogate.surrogate import Surrogate  # noqa: E402

#: Doctests are for the program; several files of this name would also shadow each other.
collect_ignore_glob = ["*conftest.py"]

torch.set_num_threads(1)
hypothesis.settings.register_profile(
    "pinn",
    deadline=None,
    derandomize=True,
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("pinn")


def pytest_collection_finish() -> None:
    """Libraries and tests stay to the end: the garbage collector need not look through them."""
    gc.freeze()


@pytest.fixture
def llama_8b_h100() -> Deployment:
    """Llama-3.1-8B in bf16 on one H100."""
    return Deployment(load_model("meta-llama/Llama-3.1-8B"), load_gpu("H100"), ServingSpec())


@pytest.fixture
def untrained(llama_8b_h100: Deployment) -> CoefficientNetwork:
    """A network that gives the priors, scaled around one deployment."""
    scale = fit_scale(*featurize([llama_8b_h100]))
    return CoefficientNetwork(NetworkSettings(), scale).double().requires_grad_(False)


@pytest.fixture(scope="session")
def measured() -> tuple[Surrogate, list[Deployment]]:
    """A surrogate with some weights and the deployments that it takes for measured."""
    deployments = [
        Deployment(load_model(name), load_gpu(gpu), ServingSpec(tensor_parallel_size=tp))
        for name, gpu, tp in (
            ("meta-llama/Llama-3.1-8B", "H100", 1),
            ("meta-llama/Llama-3.1-8B", "H200", 2),
            ("mistralai/Mixtral-8x7B-v0.1", "H100", 2),
            ("openai/gpt-oss-120b", "H200", 1),
        )
    ]
    free, rates = featurize(deployments)
    torch.manual_seed(0)
    network = CoefficientNetwork(NetworkSettings(hidden=16), fit_scale(free, rates)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    anchors = np.concatenate([free, rates], axis=1)
    names = tuple(f"{d.model.name} on {d.gpu.name}" for d in deployments)
    checkpoint = Checkpoint(network.weights(), {}, anchors, names)
    return Surrogate(checkpoint), deployments


@pytest.fixture(scope="session")
def checkpoint_path(
    measured: tuple[Surrogate, list[Deployment]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return that surrogate on disk."""
    path = tmp_path_factory.mktemp("checkpoint") / "small.safetensors"
    save_checkpoint(measured[0].checkpoint, path)
    return path


@pytest.fixture(scope="session")
def h100_kernels() -> KernelSurrogates:
    """Surrogates of the H100 alone, fitted in seconds: for laws, not for accuracy."""
    plans = {o.name: replace(o.plan, rows=4000, epochs=4, batch=512, width=24) for o in OPERATORS}
    return KernelSurrogates.fit(read_kernel_tables({"h100_sxm": load_gpu("H100")}), plans=plans)
