"""A trained network in plain numpy, and its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pinn.common import documents
from pinn.common.files import json_text, write_whole
from pinn.errors import PinnError, printable
from pinn.surrogate.featurizer import DESCRIPTORS, RATES
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

# Standardization of descriptors, fitted once and carried inside the network's buffers.

#: A descriptor that hardly varies in training gets this scale, so that it can neither blow up nor
#: be ignored when a new deployment differs in it. An assumption; descriptors are logarithms to base
#: 2 or shares.
MIN_SCALE = 0.25


@dataclass(frozen=True)
class EmbeddingScale:
    """Mean, scale and range of the training embedding.

    Attributes:
        mean: Of each free descriptor.
        scale: Standard deviation of each, at least ``MIN_SCALE``.
        low: Smallest standardized value seen.
        high: Largest standardized value seen.
        rate_low: Smallest log rate seen.
        rate_high: Largest log rate seen.
    """

    mean: Float[np.ndarray, " descriptors"]
    scale: Float[np.ndarray, " descriptors"]
    low: Float[np.ndarray, " descriptors"]
    high: Float[np.ndarray, " descriptors"]
    rate_low: Float[np.ndarray, " rates"]
    rate_high: Float[np.ndarray, " rates"]


def fit_scale(
    free: Float[np.ndarray, "n descriptors"], rates: Float[np.ndarray, "n rates"]
) -> EmbeddingScale:
    """Fit the scale on the embedding of the training deployments."""
    mean, scale = free.mean(0), np.maximum(free.std(0), MIN_SCALE)
    standard = (free - mean) / scale
    return EmbeddingScale(mean, scale, standard.min(0), standard.max(0), rates.min(0), rates.max(0))


# A trained network in plain numpy: all that predicts uses this form, so none of it needs torch.

Array = np.ndarray
#: Largest bound of a |log| correction: a factor of 5e21 either way.
_MOST_BOUND = 50.0


@dataclass(frozen=True)
class NetworkSettings:
    """Size and bounds of the network.

    On deployments left out, half the parameters cost 0.1 points and half the bound of beta as much
    (LOG.md).

    Attributes:
        hidden: Width of each hidden layer.
        depth: Hidden layers.
        beta_bound: Largest |log| correction of a beta's part above its lower bound.
        corrected: Whether the configuration correction is on; off leaves one global vector.
    """

    hidden: int = 128
    depth: int = 2
    beta_bound: float = 4.0
    corrected: bool = True

    def __post_init__(self) -> None:
        for name in ("hidden", "depth"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                given = documents.written(value)
                raise PinnError(f"network {name} must be a whole number, got {given}")
        if not documents.is_finite(self.beta_bound) or not 0 <= self.beta_bound <= _MOST_BOUND:
            given = documents.written(self.beta_bound)
            raise PinnError(f"network beta_bound must lie between 0 and {_MOST_BOUND}, got {given}")
        for value, most, what in (
            (self.hidden, documents.MOST_HIDDEN, "units of a hidden layer"),
            (self.depth, documents.MOST_DEPTH, "hidden layers"),
        ):
            documents.check_size(value, most, what, "train a smaller network")


@dataclass(frozen=True)
class Layer:
    """A linear layer.

    Attributes:
        weight: Of each output for each input.
        bias: Of each output.
    """

    weight: Float[Array, "outputs inputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Float[Array, "n inputs"]) -> Float[Array, "n outputs"]:
        """Outputs of ``n`` rows."""
        return x @ self.weight.T + self.bias


@dataclass(frozen=True)
class TrainedNetwork:
    """What :class:`pinn.surrogate.network.CoefficientNetwork` learned, in float64.

    That class has the formula and trains it; a test holds both forms together.

    Attributes:
        settings: Size and bounds.
        embedding: Standardization and range of the training embedding.
        beta_floor: Lower bounds of beta.
        beta_excess: Priors of beta above their lower bounds.
        alpha_prior: Priors of alpha.
        elasticity_lower: Least bend of each beta with each rate.
        elasticity_upper: Largest.
        beta_base: Log factor of each beta that all deployments share.
        alpha_base: The same of each alpha; nothing else moves one.
        trunk: Hidden layers, each followed by a SiLU.
        beta_head: Hidden units -> correction of beta before its bound.
        elasticity_head: Hidden units -> elasticities before their bounds, rates innermost.
    """

    settings: NetworkSettings
    embedding: EmbeddingScale
    beta_floor: Float[Array, " beta"]
    beta_excess: Float[Array, " beta"]
    alpha_prior: Float[Array, " alpha"]
    elasticity_lower: Float[Array, "beta rates"]
    elasticity_upper: Float[Array, "beta rates"]
    beta_base: Float[Array, " beta"]
    alpha_base: Float[Array, " alpha"]
    trunk: tuple[Layer, ...]
    beta_head: Layer
    elasticity_head: Layer

    @classmethod
    def from_arrays(
        cls, settings: NetworkSettings, arrays: Mapping[str, Shaped[Array, "..."]]
    ) -> TrainedNetwork:
        """The network of named arrays, as :meth:`arrays` and a checkpoint name them.

        Raises:
            ValueError: If names are missing or unknown, or shapes differ from the settings'.
        """
        _check_shapes(settings, arrays)
        found = {name: np.asarray(array, np.float64) for name, array in arrays.items()}

        def layer(name: str) -> Layer:
            return Layer(found[f"{name}.weight"], found[f"{name}.bias"])

        parts: dict[str, Any] = {name: found[name] for name in _ARRAYS}
        parts |= {name: layer(name) for name in _HEADS}
        embedding = EmbeddingScale(**{name: found[name] for name in _EMBEDDING})
        trunk = tuple(layer(name) for name in _trunk_names(settings))
        return cls(settings=settings, embedding=embedding, trunk=trunk, **parts)

    def arrays(self) -> dict[str, Float[Array, "..."]]:
        """Every array under its name in a checkpoint."""
        layers = dict(zip(_trunk_names(self.settings), self.trunk, strict=True))
        layers |= {name: getattr(self, name) for name in _HEADS}
        return (
            {name: getattr(self.embedding, name) for name in _EMBEDDING}
            | {name: getattr(self, name) for name in _ARRAYS}
            | {f"{name}.weight": layer.weight for name, layer in layers.items()}
            | {f"{name}.bias": layer.bias for name, layer in layers.items()}
        )

    def coefficients(
        self, free: Float[Array, "n descriptors"], rates: Float[Array, "n rates"]
    ) -> tuple[Float[Array, "n beta"], Float[Array, "n alpha"]]:
        """Beta and alpha of ``n`` embedded deployments, in the order of the registries.

        Args:
            free: Descriptors.
            rates: Log datasheet rates.
        """
        beta_log, alpha_log = (
            np.tile(base, (len(free), 1)) for base in (self.beta_base, self.alpha_base)
        )
        if self.settings.corrected:
            beta_log = beta_log + self._corrections(free, rates)
        beta = self.beta_floor + self.beta_excess * np.exp(beta_log)
        return beta, self.alpha_prior * np.exp(alpha_log)

    def _corrections(self, free: Array, rates: Array) -> Float[Array, "n beta"]:
        """Log corrections of beta."""
        scale = self.embedding
        standard = (free - scale.mean) / scale.scale
        hidden = np.clip(standard, scale.low, scale.high)
        for layer in self.trunk:
            raw = layer(hidden)
            hidden = raw * _sigmoid(raw)
        clamped = np.clip(rates, scale.rate_low, scale.rate_high)
        bend = (self._elasticity(hidden) * clamped[:, None, :]).sum(-1)
        return self.settings.beta_bound * np.tanh(self.beta_head(hidden)) + bend

    def _elasticity(self, hidden: Float[Array, "n hidden"]) -> Float[Array, "n beta rates"]:
        """D log(beta) / d log(rate), within its bounds."""
        lower, span = self.elasticity_lower, self.elasticity_upper - self.elasticity_lower
        zero = _logit(-lower / span)
        raw = self.elasticity_head(hidden).reshape(-1, *span.shape) + zero
        return lower + span * _sigmoid(raw)


_EMBEDDING = tuple(field.name for field in fields(EmbeddingScale))
_HEADS = ("beta_head", "elasticity_head")
_ARRAYS = (
    "beta_floor", "beta_excess", "alpha_prior", "elasticity_lower", "elasticity_upper",
    "beta_base", "alpha_base",
)  # fmt: skip


def _trunk_names(settings: NetworkSettings) -> list[str]:
    """Names of the hidden layers: every second one of torch's sequence is an activation."""
    return [f"trunk.{2 * i}" for i in range(settings.depth)]


def _shapes(settings: NetworkSettings) -> dict[str, tuple[int, ...]]:
    """Shape of every array of a network of this size."""
    beta, alpha, d, r = len(STEP_FEATURES), len(REQUEST_FEATURES), len(DESCRIPTORS), len(RATES)
    shapes: dict[str, tuple[int, ...]] = {}
    shapes |= {name: (r,) if name.startswith("rate_") else (d,) for name in _EMBEDDING}
    for name in _ARRAYS:
        width = alpha if name.startswith("alpha") else beta
        shapes[name] = (width, r) if name.startswith("elasticity") else (width,)
    inputs = [d, *[settings.hidden] * settings.depth]
    trunk = zip(_trunk_names(settings), inputs, strict=False)
    layers = {name: (settings.hidden, width) for name, width in trunk}
    for name, width in zip(_HEADS, (beta, beta * r), strict=True):
        layers[name] = (width, settings.hidden)
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def _check_shapes(settings: NetworkSettings, arrays: Mapping[str, Shaped[Array, "..."]]) -> None:
    wanted = _shapes(settings)
    wrong = [f"{name} is missing" for name in wanted if name not in arrays]
    wrong += [f"{name} is unknown" for name in arrays if name not in wanted]
    wrong += [
        f"{name} has shape {list(arrays[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in arrays and arrays[name].shape != shape
    ]
    if wrong:
        raise ValueError("; ".join(wrong))


def _sigmoid(x: Array) -> Array:
    """Exact to rounding at either end, where exp(-x) alone would overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _logit(share: Array) -> Array:
    """Inverse sigmoid of a share kept off 0 and 1, as in training."""
    share = np.clip(share, 0.1, 0.9)
    return np.log(share) - np.log1p(-share)


# The network on disk: a safetensors file whose header says what it is. No code is loaded.

FORMAT_VERSION = 2


@dataclass(frozen=True)
class Checkpoint:
    """A trained network with what is needed to trust it.

    Attributes:
        network: Ready to predict; ``CoefficientNetwork.from_trained`` makes the one to train.
        metadata: Free-form facts as JSON values: sources with hashes, metrics, date, command.
        anchors: Embedding (descriptors, then rates) of the measured deployments it learned from.
        anchor_names: What they are called in print-outs.
    """

    network: TrainedNetwork
    metadata: dict[str, Any] = field(default_factory=dict)
    anchors: Float[np.ndarray, "anchors embedding"] = field(
        default_factory=lambda: np.zeros((0, len(DESCRIPTORS) + len(RATES)))
    )
    anchor_names: tuple[str, ...] = ()


def registry() -> dict[str, list[str]]:
    """Everything whose order a checkpoint depends on."""
    return {
        "step_features": [f"{f.name} [{f.unit}]" for f in STEP_FEATURES.values()],
        "request_features": [f"{f.name} [{f.unit}]" for f in REQUEST_FEATURES.values()],
        "descriptors": list(DESCRIPTORS),
        "rates": list(RATES),
    }


def save_checkpoint(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write a checkpoint; the file appears whole or not at all."""
    header = {
        "format_version": FORMAT_VERSION,
        "settings": asdict(checkpoint.network.settings),
        "registry": registry(),
        "anchor_names": list(checkpoint.anchor_names),
        "metadata": checkpoint.metadata,
    }
    arrays = checkpoint.network.arrays() | {"anchors": checkpoint.anchors}
    tensors = {k: np.ascontiguousarray(v, np.float64) for k, v in arrays.items()}
    write_whole(Path(path), save(tensors, metadata={"pinn": json_text(header)}))


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        PinnError: If the file is missing, truncated or not a checkpoint, or was made for another
            format version, feature registry or embedding than this program's.
    """
    path = Path(path)
    if not path.is_file():
        raise PinnError(
            f"no checkpoint at {path}: train one with 'python train.py', or give another path"
        )
    size, most = path.stat().st_size, documents.MOST_CHECKPOINT_BYTES
    documents.check_size(size, most, f"{path}: bytes", "give a checkpoint")
    try:
        with safe_open(path, framework="numpy") as file:
            header = documents.parse_json((file.metadata() or {})["pinn"], str(path))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, PinnError, OSError) as error:
        raise PinnError(
            f"{path} is not a readable checkpoint ({type(error).__name__}: {error}): it may be cut "
            "off; copy it again or train a new one with 'python train.py'"
        ) from error
    _check_header(header, path)
    try:
        anchors = _anchors(tensors, header)
        network = TrainedNetwork.from_arrays(NetworkSettings(**header["settings"]), tensors)
    except (ValueError, TypeError, KeyError) as error:
        raise PinnError(f"{path} does not hold this network's weights: {error}") from error
    names = tuple(map(printable, header["anchor_names"]))
    return Checkpoint(network, header["metadata"], anchors, names)


def _anchors(tensors: dict[str, np.ndarray], header: dict[str, Any]) -> np.ndarray:
    """The measured deployments, one row a name; all numbers of the file are finite."""
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise ValueError(f"{name} holds a number that is not finite")
    anchors, width = tensors.pop("anchors"), len(DESCRIPTORS) + len(RATES)
    if anchors.shape != (len(header["anchor_names"]), width):
        raise ValueError(f"anchors have shape {list(anchors.shape)}, expected a row a name")
    if not isinstance(header["metadata"], dict):
        raise ValueError("its metadata is no JSON object")
    return anchors


def _check_header(header: Any, path: Path) -> None:
    version = header.get("format_version") if isinstance(header, dict) else None
    if version != FORMAT_VERSION:
        raise PinnError(
            f"{path} has checkpoint format {version}, this program reads {FORMAT_VERSION}: use the "
            "pinn release that made it, or train a new one with 'python train.py'"
        )
    expected = registry()
    for part, names in expected.items():
        known = header.get("registry")
        found = known.get(part) if isinstance(known, dict) else None
        if found != names:
            listed = map(str, found) if isinstance(found, list) else ()
            unknown = sorted(set(listed) ^ set(names)) or ["the order"]
            raise PinnError(
                f"{path} was made for other {part.replace('_', ' ')} (they differ in "
                f"{', '.join(unknown)}): train a new checkpoint with 'python train.py'"
            )
