"""Export of the network and the step-time formula as float64 ONNX graphs."""

import contextlib
import io
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pinn.common.files import json_text, write_json_file, write_whole
from pinn.export.configured import Configured
from pinn.physics import batch_sums
from pinn.specs.batch import parse_batch
from pinn.surrogate import deployment_features as speculation
from pinn.surrogate import request_features as request
from pinn.surrogate import step_features as step
from pinn.surrogate.checkpoint import Checkpoint, registry
from pinn.surrogate.featurizer import DESCRIPTORS, RATES, featurize
from pinn.surrogate.network import CoefficientNetwork
from pinn.units import MICROSECOND

FORMAT_VERSION = 1
#: Lowest version of the ONNX operator set that supports float64 in all operators used.
OPSET = 17
COEFFICIENTS, STEP_TIME = "coefficients.onnx", "step_time.onnx"


class StepTime(nn.Module):
    """ONNX graph of step times, computed from batch features and step-time coefficients (beta).

    Kernel launches and GPU work overlap, so only the longer of the two counts.
    """

    parts: Float[Tensor, "basis parts"]

    def __init__(self) -> None:
        super().__init__()
        masks = np.stack([step.HOST, step.LAUNCHING, step.GPU], axis=-1)
        self.register_buffer("parts", torch.from_numpy(masks.astype(float)), persistent=False)

    def forward(
        self, features: Float[Tensor, "n basis"], beta: Float[Tensor, "m basis"]
    ) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
        """Return step times in seconds, and rounded to whole microseconds (at least 1).

        Half microseconds are rounded to even. ``features`` has one row per batch; ``beta`` has one
        row per batch, or one row for all batches.
        """
        host, launching, gpu = ((features * beta) @ self.parts).unbind(-1)
        seconds = host + torch.maximum(launching, gpu)
        return seconds, torch.clamp(torch.round(seconds * 1e6), min=1.0).to(torch.int64)


class NamedCoefficients(nn.Module):
    """Network whose outputs are in the order of the ONNX graph's output names."""

    def __init__(self, network: CoefficientNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, descriptors: Float[Tensor, "n descriptors"], rates: Float[Tensor, "n rates"]
    ) -> tuple[Float[Tensor, "n alpha"], Float[Tensor, "n beta"]]:
        """Return request and step coefficients (alpha, beta) of ``n`` deployments from both inputs.

        ``descriptors`` are ratios and logarithms of a deployment's sizes; ``rates`` are rates from
        GPU datasheets.
        """
        beta, alpha = self.network(descriptors, rates)
        return alpha, beta


def export_onnx(checkpoint: Checkpoint, provenance: dict[str, Any], folder: Path) -> list[Path]:
    """Write the ONNX graphs of coefficients and of step times, and return their paths.

    ``coefficients.onnx`` has the inputs ``descriptors`` [n, descriptors] and ``rates`` [n, rates],
    which ``pinn.surrogate.featurizer`` computes from n deployments, and the outputs ``alpha`` [n,
    request features] and ``beta`` [n, step features]. ``step_time.onnx`` has the inputs
    ``features`` [n, step features] and ``beta`` [n or 1, step features], and the outputs
    ``step_time_s`` [n] in seconds and ``step_time_us`` [n] in whole microseconds, at least 1.

    Args:
        checkpoint: Checkpoint to export.
        provenance: Origin of the checkpoint, for the metadata of both graphs.
        folder: Folder of the two files.

    Returns:
        Paths of the two files.
    """
    facts = metadata(checkpoint, provenance)
    network = NamedCoefficients(CoefficientNetwork.from_weights(checkpoint.network))
    embedded = {"descriptors": len(DESCRIPTORS), "rates": len(RATES)}
    timed = {"features": len(step.STEP_FEATURES), "beta": len(step.STEP_FEATURES)}
    return [
        _write(network, embedded, ("alpha", "beta"), facts, folder / COEFFICIENTS),
        _write(StepTime(), timed, ("step_time_s", "step_time_us"), facts, folder / STEP_TIME),
    ]


def metadata(checkpoint: Checkpoint, provenance: dict[str, object]) -> dict[str, str]:
    """Return both graphs' metadata by key; every value except ``format`` is JSON."""
    scale = vars(checkpoint.network.input_scale)
    facts = {
        "version": FORMAT_VERSION,
        "opset": OPSET,
        "registry": registry(),
        "alpha": {f.name: f.unit for f in request.REQUEST_FEATURES.values()},
        "beta": {f.name: f.unit for f in step.STEP_FEATURES.values()},
        "units": {
            "descriptors": "as pinn.surrogate.featurizer",
            "rates": "natural logarithm of (GPU's peak rate / H100 SXM's)",
            "features": "seconds at peak rates if the coefficient (beta) is dimensionless, else a "
            "count",
            "step_time_s": "s",
            "step_time_us": "us",
        },
        "embedding_scale": {k: v.tolist() for k, v in scale.items()},
        "provenance": provenance,
    }
    return {"format": "pinn.onnx"} | {name: json_text(value) for name, value in facts.items()}


def _write(
    module: nn.Module,
    widths: dict[str, int],
    outputs: tuple[str, ...],
    facts: dict[str, str],
    path: Path,
) -> Path:
    inputs = {name: torch.zeros(2, width).double() for name, width in widths.items()}
    model = _trace(module, inputs, outputs)
    _keep_inputs(model, widths)
    onnx.helper.set_model_props(model, facts)
    model.producer_name = "pinn"
    onnx.checker.check_model(model)
    write_whole(path, model.SerializeToString())
    return path


def _keep_inputs(model: onnx.ModelProto, widths: dict[str, int]) -> None:
    """Add unused inputs of the network to a graph, so that all exports have the same inputs."""
    found = {entry.name for entry in model.graph.input}
    for name, width in widths.items():
        if name not in found:
            shape = (f"{name}_rows", width)
            model.graph.input.append(
                onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, shape)
            )


def _trace(
    module: nn.Module, inputs: dict[str, Tensor], outputs: tuple[str, ...]
) -> onnx.ModelProto:
    """Return a module as an ONNX graph whose inputs and outputs have a variable first axis."""
    rows = {name: {0: f"{name}_rows"} for name in (*inputs, *outputs)}
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        torch.no_grad(),
    ):
        warnings.simplefilter("ignore")
        path = Path(folder) / "graph.onnx"
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=rows,
            opset_version=OPSET,
            dynamo=False,
        )
        return onnx.load(path)


def write_inputs(configured: Configured, batch: str, path: Path) -> dict[str, Any]:
    """Write example inputs for both ONNX graphs, and the step time of a batch, to a JSON file.

    The inputs are those of one configuration and one batch, in the order of the graphs' features.

    Args:
        configured: One configuration with the network's coefficients.
        batch: Batch as text, such as ``32 decode @ 700``.
        path: JSON file, in the format that the Go example reads.

    Raises:
        PinnError: If the batch cannot be parsed.
    """
    (deployment,) = configured.deployments
    free, rates = featurize([deployment])
    sums = batch_sums.sum_batches([parse_batch(batch)], deployment.model.window_tokens)
    features = speculation.padded_features(deployment, sums)
    (seconds,) = step.step_time(features, configured.coefficients.beta).tolist()
    found = {
        "configuration": configured.configurations[0],
        "batch": batch,
        "descriptors": free[0].tolist(),
        "rates": rates[0].tolist(),
        "features": features[0].tolist(),
        "step_time_us": max(round(seconds / MICROSECOND), 1),
    }
    write_json_file(path, found, indent=1)
    return found
