"""The servers of a page: every GPU, format and tensor-parallel size that starts."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pinn.common.documents import check_size
from pinn.engines import configurations
from pinn.engines.deployment import Deployment
from pinn.engines.labels import format_label
from pinn.errors import PinnError
from pinn.planning import fleet
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.memory import max_model_len, memory_fit
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import VLLM
from pinn.surrogate import surrogate

#: Default tensor-parallel sizes, and default number formats; None is the checkpoint's own format.
SIZES = (1, 2, 4, 8)
FORMATS = (None, "fp8")
#: Most servers of a page. Simulating one takes some seconds.
MOST_SERVERS = 200


@dataclass(frozen=True)
class Asked:
    """One combination of GPU, tensor-parallel size and number format.

    Attributes:
        gpu: Name of the GPU.
        tp: Tensor-parallel size.
        precision: Value of ``--quantization``; empty for the checkpoint's own format.
    """

    gpu: str
    tp: int
    precision: str


@dataclass(frozen=True)
class HalfWidths:
    """Half-widths of the 90 % intervals of a server, in log units.

    Attributes:
        tpot: Of the time per token.
        ttft: Of the time to first token.
    """

    tpot: float
    ttft: float


@dataclass(frozen=True)
class Server:
    """One vLLM replica that starts.

    Attributes:
        asked: GPU, tensor-parallel size and format.
        latency: Deployment and its coefficients.
        half_widths: Of the intervals; None if the checkpoint has none.
    """

    asked: Asked
    latency: LinearLatency
    half_widths: HalfWidths | None

    @property
    def deployment(self) -> Deployment:
        """Model, GPU and resolved engine configuration."""
        return self.latency.deployment

    @property
    def format(self) -> str:
        """Name of the weights' number format."""
        return format_label(self.deployment)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return memory_fit(self.deployment).kv_tokens or 0

    @property
    def max_requests(self) -> int:
        """Most requests of a step."""
        return self.deployment.recipe.max_requests

    @property
    def max_model_len(self) -> int:
        """Most tokens of a request."""
        return max_model_len(self.deployment)


@dataclass(frozen=True)
class LeftOut:
    """A combination that does not start, and the reason."""

    asked: Asked
    reason: str


@dataclass(frozen=True)
class Servers:
    """The servers of a page.

    Attributes:
        model: Name or path of the model, as given.
        flags: Engine flags that all servers share, as given.
        found: Servers that start.
        left_out: Combinations that do not start.
    """

    model: str
    flags: Mapping[str, object]
    found: tuple[Server, ...]
    left_out: tuple[LeftOut, ...] = ()


def find_servers(
    shared: Mapping[str, object],
    gpus: Sequence[str],
    sizes: Sequence[int],
    formats: Sequence[str | None],
    checkpoint: Path,
) -> Servers:
    """Build the deployment of every combination and predict its coefficients.

    Args:
        shared: Model and flags of all servers, keys of ``pinn.engines.configurations.KEYS``.
        gpus: Names or datasheet paths of GPUs.
        sizes: Tensor-parallel sizes.
        formats: Number formats; None is the checkpoint's own.
        checkpoint: Path of the network's checkpoint.

    Raises:
        PinnError: If no server starts, or the page does not support one.
    """
    check_size(len(gpus) * len(sizes) * len(formats), MOST_SERVERS, "servers of a page", "ask less")
    started: dict[tuple[str, int, str], tuple[Asked, Deployment]] = {}
    left_out: list[LeftOut] = []
    for gpu, form, size in itertools.product(gpus, formats, sizes):
        row = {**shared, "gpu": gpu, "tensor_parallel_size": size}
        row |= {"precision": form} if form else {}
        asked = Asked(load_gpu(gpu).name, size, form or "")
        deployment, reason = _started(row)
        if deployment is None:
            left_out.append(LeftOut(asked, reason))
        else:
            # The checkpoint's own format may be one of the formats that were asked for.
            key = (asked.gpu, size, format_label(deployment))
            started.setdefault(key, (asked, deployment))
    if not started:
        reasons = "; ".join(dict.fromkeys(each.reason for each in left_out))
        raise PinnError(f"no server starts: {reasons}")
    flags = {name: value for name, value in shared.items() if name != "model"}
    found = _servers(list(started.values()), checkpoint)
    return Servers(str(shared["model"]), flags, found, tuple(left_out))


def _servers(started: Sequence[tuple[Asked, Deployment]], checkpoint: Path) -> tuple[Server, ...]:
    network = surrogate.Surrogate.load(checkpoint)
    coefficients = network.coefficients([deployment for _, deployment in started])
    return tuple(
        Server(
            asked,
            LinearLatency(deployment, np.asarray(beta), np.asarray(alpha)),
            _half_widths(checkpoint, deployment),
        )
        for (asked, deployment), beta, alpha in zip(
            started, coefficients.beta, coefficients.alpha, strict=True
        )
    )


def _half_widths(checkpoint: Path, deployment: Deployment) -> HalfWidths | None:
    found = fleet.prediction_interval(checkpoint, deployment)
    if found is None:
        return None
    return HalfWidths(found.bad.step, max(found.bad.step, found.bad.request))


def _started(row: Mapping[str, object]) -> tuple[Deployment | None, str]:
    """Return the deployment, or None and the reason why the engine does not start."""
    try:
        deployment = configurations.make_deployment(configurations.canonical(row))
    except PinnError as error:
        return None, str(error)
    _check_supported(deployment)
    fit = memory_fit(deployment)
    return (deployment, "") if fit.fits else (None, fit.reason)


def _check_supported(deployment: Deployment) -> None:
    """Raise an error if the page does not support the deployment's engine or parallelism."""
    recipe = deployment.recipe
    unsupported = {
        f"engine {deployment.serving.engine}": deployment.serving.engine != VLLM,
        "pipeline parallelism": recipe.pipeline_parallel_size > 1,
        "data parallelism": recipe.data_parallel_size > 1,
        "speculative decoding": recipe.speculation is not None,
    }
    wrong = [name for name, found in unsupported.items() if found]
    if wrong:
        raise PinnError(
            f"the page shows vLLM servers of one pipeline stage without drafts, got "
            f"{', '.join(wrong)}: use 'pinn simulate'"
        )
