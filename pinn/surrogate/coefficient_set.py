"""JSON file of one deployment's coefficients, with facts about the deployment and the fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from pinn.common.documents import is_finite, misfit, read_json
from pinn.common.files import save_json
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import reference_version
from pinn.errors import PinnError
from pinn.specs.flags import flags_of
from pinn.specs.serving import VLLM, ServingSpec
from pinn.surrogate.coefficients import NAMES, REGISTRIES, Coefficients
from pinn.surrogate.request_features import REQUEST_FEATURES

# JSON file of one deployment's coefficients, which commands read with ``--coefficients``.
#
# Numbers have enough digits to be read back exactly. ``pinn coefficients --json`` writes such a
# file from the network's predictions; ``pinn calibrate`` writes one from measurements. A calibrated
# file also has each coefficient before the calibration (``base``) and the fit itself
# (``calibration``).

SCHEMA = "pinn coefficients 1"

_FACTS = ("model", "gpu", "precisions", "serving", "named")

#: Keys of ``named``, which stores the names given by the user, to recreate the deployment.
NAMED = ("model", "gpu", "precision", "force")

#: Flags that affect coefficients. All other flags affect only step features or scheduling.
_COST_FLAGS = tuple(flag.name for flag in flags_of(ServingSpec) if flag.decides_cost)


@dataclass(frozen=True)
class CoefficientSet:
    """Coefficients of one deployment, with facts about the deployment and the fit.

    Attributes:
        deployment: ``model``, ``gpu``, ``precisions`` and ``serving`` as :func:`deployment_facts`
            returns them, optionally with the user's names in ``named``; empty if the file has no
            such facts.
        coefficients: Request (alpha) and step (beta) coefficients of the deployment.
        taught: Whether each request coefficient (alpha) was fitted to data; all others are priors.
        base: Coefficients before a calibration; None without a calibration.
        calibration: Data and quality of a calibration's fit, ready for JSON.
        covariance: Covariance of all coefficients after a calibration, step coefficients first;
            None if unknown.
    """

    deployment: dict[str, Any]
    coefficients: Coefficients
    taught: Bool[np.ndarray, " request_features"] = field(
        default_factory=lambda: np.ones(len(REQUEST_FEATURES), dtype=bool)
    )
    base: Coefficients | None = None
    calibration: dict[str, Any] = field(default_factory=dict)
    covariance: Float[np.ndarray, "coefficients coefficients"] | None = None

    @property
    def beta(self) -> Float[np.ndarray, " step_features"]:
        """Return the step coefficients (beta) as a vector, in the order of ``STEP_FEATURES``."""
        return self.coefficients.beta[0]

    @property
    def alpha(self) -> Float[np.ndarray, " request_features"]:
        """Return the request coefficients (alpha) in the order of ``REQUEST_FEATURES``."""
        return self.coefficients.alpha[0]

    def configuration(self) -> dict[str, Any]:
        """Return the deployment as a configuration: model, GPU and vLLM's flags by name.

        Model, GPU and format are those of ``named``, if present. The model may be the path of a
        config.json that the user gave instead of a name.
        """
        facts = self.deployment
        own = {name: facts[name] for name in ("model", "gpu") if name in facts}
        return own | (facts.get("named") or {}) | (facts.get("serving") or {})

    def link_flags(self) -> dict[str, float]:
        """Return flags with the calibrated bandwidth of the host link; empty if not calibrated.

        The measured rate includes the overhead of the copies.
        """
        found = self.calibration.get("host_link")
        if not found:
            return {}
        rates = {"host_link_bytes_per_s": found["bytes_per_s"], "host_link_copy_s": 0.0}
        return rates | {"host_link_latency_s": found["latency_s"]}

    def check_deployment(self, deployment: Deployment, where: str) -> None:
        """Check that the coefficients belong to ``deployment``.

        Limits of the scheduler may differ: they change which steps occur, not how long a step
        takes.

        Args:
            deployment: Deployment that the coefficients are to be used for.
            where: Source of the coefficients for the error message, such as their file.

        Raises:
            PinnError: If model, GPU, number formats, parallelism, eager mode or offload differ.
        """
        wanted = deployment_facts(deployment)
        differences = [
            f"{name} {_of(self.deployment, name)} instead of {_of(wanted, name)}"
            for name in ("model", "gpu", "precisions", *_COST_FLAGS)
            if _of(self.deployment, name) not in (None, _of(wanted, name))
        ]
        if differences:
            raise PinnError(
                f"{where} has coefficients of another deployment "
                f"({'; '.join(differences)}): give the file's deployment, or write "
                "the file again for the given deployment"
            )


def _of(facts: dict[str, Any], name: str) -> object:
    """Return one fact about a deployment; a missing release means the release of the defaults."""
    serving = facts.get("serving") or {}
    if name == "engine_version" and serving.get(name) == "":
        return reference_version(serving.get("engine", VLLM)).value
    return (serving if name in _COST_FLAGS else facts).get(name)


def deployment_facts(deployment: Deployment) -> dict[str, Any]:
    """Return a deployment's model, GPU, number formats and vLLM flags, to store in a file."""
    formats = {k: p.name for k, p in vars(deployment.model.precisions).items()}
    return {
        "model": deployment.model.name,
        "gpu": deployment.gpu.name,
        "precisions": formats | {"kv_cache": deployment.kv_cache_precision.name},
        "serving": asdict(deployment.serving),
    }


def set_to_json(
    found: CoefficientSet, ends: Mapping[str, tuple[float, float]] = MappingProxyType({})
) -> dict[str, Any]:
    """Return a coefficient set as JSON-ready values; coefficients are seconds or multipliers.

    Args:
        found: Coefficients of a deployment, with facts about them.
        ends: Both ends of each known interval, by ``beta.NAME`` or ``alpha.NAME``.
    """
    features = [feature for registry in REGISTRIES.values() for feature in registry.values()]
    values = found.coefficients.values[0].tolist()
    base = None if found.base is None else found.base.values[0].tolist()
    parts: dict[str, dict[str, dict[str, object]]] = {part: {} for part in REGISTRIES}
    for i, (name, feature) in enumerate(zip(NAMES, features, strict=True)):
        part = name.partition(".")[0]
        entry = parts[part][feature.name] = {"value": values[i], "unit": feature.unit}
        if base is not None:
            entry["base"] = base[i]
        if part == "alpha":
            entry["taught"] = bool(found.taught[i - len(found.beta)])
        if name in ends:
            entry["low"], entry["high"] = ends[name]
    tree = {"schema": SCHEMA, **found.deployment, **parts}
    if found.covariance is not None:
        tree["covariance"] = covariance_entry(found.covariance)
    return tree | ({"calibration": found.calibration} if found.calibration else {})


def write_coefficient_set(found: CoefficientSet, path: Path) -> None:
    """Write a coefficient file with the checks of ``save_json``, atomically."""
    save_json(path, set_to_json(found))


def read_coefficient_set(path: Path) -> CoefficientSet:
    """Return the coefficients in a file of ``pinn coefficients --json`` or ``pinn calibrate``.

    The entry of a coefficient may also be a bare number. Only ``beta`` and ``alpha`` are required.

    Raises:
        PinnError: If the file cannot be read or has a different schema, if a name is missing or
            unknown, or if a value is not finite or is negative.
    """
    if path.suffix == ".safetensors":
        raise PinnError(
            f"{path} is a checkpoint, expected a coefficient file: write the coefficients of your "
            "server with 'pinn coefficients --json FILE', and give FILE"
        )
    tree = read_json(path)
    schema = tree.get("schema", SCHEMA) if isinstance(tree, dict) else None
    if schema is not None and schema != SCHEMA:
        raise PinnError(
            f"{path} has the schema {schema!r}, but this version reads {SCHEMA!r}: write "
            "the file again with 'pinn coefficients --json' or 'pinn calibrate'"
        )
    entries = {part: _checked_entries(tree, part, path) for part in REGISTRIES}
    _check_facts(tree, path)
    has_base = all("base" in e for part in entries.values() for e in part.values())
    return CoefficientSet(
        {k: tree[k] for k in _FACTS if k in tree},
        _vectors(entries, "value", path),
        np.array([bool(e.get("taught", True)) for e in entries["alpha"].values()]),
        _vectors(entries, "base", path) if has_base else None,
        tree.get("calibration") or {},
        _covariance(tree["covariance"], path) if tree.get("covariance") else None,
    )


def _check_facts(tree: dict[str, Any], path: Path) -> None:
    """Check the types of the optional facts in a coefficient file."""
    for name in ("precisions", "serving", "named", "calibration"):
        if not isinstance(tree.get(name) or {}, dict):
            raise misfit(f"{path}: {name} must be a JSON object", tree[name])
    for name in ("model", "gpu"):
        if not isinstance(tree.get(name, ""), str):
            raise misfit(f"{path}: {name} must be text", tree[name])
    sources = (tree.get("calibration") or {}).get("sources", [])
    listed = isinstance(sources, list) and all(isinstance(s, dict) for s in sources)
    if not listed or not all(isinstance(s.get("path"), str) for s in sources):
        raise misfit(
            f"{path}: calibration.sources must be a list of objects with the key path", sources
        )


def covariance_entry(covariance: Float[np.ndarray, "n n"]) -> dict[str, object]:
    """Return the JSON of a covariance: names of coefficients with a variance, and matrix rows.

    Each row of the matrix is a string of numbers.
    """
    free = np.flatnonzero(np.diag(covariance) > 0)
    rows = covariance[np.ix_(free, free)]
    return {
        "names": [NAMES[i] for i in free],
        "rows": [" ".join(f"{value:.8g}" for value in row) for row in rows],
    }


def _covariance(entry: Any, path: Path) -> Float[np.ndarray, "coefficients coefficients"]:
    try:
        places = [NAMES.index(name) for name in entry["names"]]
        rows = np.array([[float(v) for v in row.split()] for row in entry["rows"]])
        found = np.zeros((len(NAMES), len(NAMES)))
        found[np.ix_(places, places)] = rows
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PinnError(
            f"{path}: the covariance cannot be read ({error}): write the file again with "
            "'pinn calibrate'"
        ) from error
    if not (np.isfinite(found).all() and (np.diag(found) >= 0).all()):
        raise PinnError(
            f"{path}: the covariance has a number that is not finite, or a negative variance: "
            "write the file again with 'pinn calibrate'"
        )
    return found


def _checked_entries(tree: object, part: str, path: Path) -> dict[str, dict[str, object]]:
    given = tree.get(part) if isinstance(tree, dict) else None
    if not isinstance(given, dict):
        raise PinnError(
            f"{path}: {part} must be a mapping from feature names to values, got {given!r:.60}"
        )
    registry = REGISTRIES[part]
    entries = {k: e if isinstance(e, dict) else {"value": e} for k, e in given.items()}
    # Skip unknown coefficients that are 0. Files of earlier versions may contain coefficients that
    # this version lacks, and a coefficient of 0 has no effect.
    known = {k: e for k, e in entries.items() if k in registry or e.get("value") != 0}
    odd = sorted(set(known) ^ set(registry))
    if odd:
        raise PinnError(
            f"{path}: the names in {part} differ from this version's features "
            f"({', '.join(odd)}): write the file again with 'pinn coefficients "
            "--json' or 'pinn calibrate'"
        )
    return {name: known[name] for name in registry}


def _vectors(
    entries: dict[str, dict[str, dict[str, object]]], key: str, path: Path
) -> Coefficients:
    parts = [
        np.array([[_number(entry.get(key), f"{part}.{name}", path) for name, entry in of.items()]])
        for part, of in entries.items()
    ]
    return Coefficients(*parts)


def _number(value: object, name: str, path: Path) -> float:
    if not is_finite(value) or value < 0:
        raise misfit(f"{path}: {name} must be a finite number of 0 or more", value)
    return float(value)
