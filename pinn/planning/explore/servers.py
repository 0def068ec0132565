"""The servers of a page: every GPU, format and tensor-parallel size that starts."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from pinn.surrogate.surrogate import Surrogate

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
class Server:
    """One vLLM replica that starts.

    Attributes:
        asked: GPU, tensor-parallel size and format.
        latency: Deployment and its coefficients.
        half_widths: Of the 90 % intervals of TPOT and TTFT, in log units; None if the checkpoint
            has none.
    """

    asked: Asked
    latency: LinearLatency
    half_widths: dict[str, float] | None

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


def find_servers(
    shared: Mapping[str, object],
    gpus: Sequence[str],
    sizes: Sequence[int],
    formats: Sequence[str | None],
    checkpoint: Path,
) -> tuple[list[Server], list[tuple[Asked, str]]]:
    """Build the deployment of every combination and predict its coefficients.

    Args:
        shared: Model and flags of all servers, keys of ``pinn.engines.configurations.KEYS``.
        gpus: Names or datasheet paths of GPUs.
        sizes: Tensor-parallel sizes.
        formats: Number formats; None is the checkpoint's own.
        checkpoint: Path of the network's checkpoint.

    Returns:
        The servers, and the combinations that do not start, each with its reason.

    Raises:
        PinnError: If no server starts, or the page does not support one.
    """
    check_size(len(gpus) * len(sizes) * len(formats), MOST_SERVERS, "servers of a page", "ask less")
    started: dict[tuple[str, int, str], tuple[Asked, Deployment]] = {}
    left_out: list[tuple[Asked, str]] = []
    for gpu, form, size in itertools.product(gpus, formats, sizes):
        row = {**shared, "gpu": gpu, "tensor_parallel_size": size}
        row |= {"precision": form} if form else {}
        asked = Asked(load_gpu(gpu).name, size, form or "")
        deployment, reason = _started(row)
        if deployment is None:
            left_out.append((asked, reason))
        else:
            # The checkpoint's own format may be one of the formats that were asked for.
            key = (asked.gpu, size, format_label(deployment))
            started.setdefault(key, (asked, deployment))
    if not started:
        reasons = "; ".join(dict.fromkeys(reason for _, reason in left_out))
        raise PinnError(f"no server starts: {reasons}")
    found = Surrogate.load(checkpoint).coefficients([each for _, each in started.values()])
    servers = [
        Server(asked, LinearLatency(deployment, beta, alpha), _half_widths(checkpoint, deployment))
        for (asked, deployment), beta, alpha in zip(
            started.values(), found.beta, found.alpha, strict=True
        )
    ]
    return servers, left_out


def _half_widths(checkpoint: Path, deployment: Deployment) -> dict[str, float] | None:
    found = fleet.prediction_interval(checkpoint, deployment)
    if found is None:
        return None
    return {"tpot": found.bad.step, "ttft": max(found.bad.step, found.bad.request)}


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
