"""Files for an unmodified BLIS: flags, a defaults YAML per vector, GPUs and a summary."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pinn.export.blis_features import BASIS
from pinn.export.blis_model import blis_model, hardware_entry
from pinn.export.blis_vectors import BlisVector
from pinn.export.configured import Configured

#: State of BLIS that the files are for.
BLIS_STATE = "inference-sim of August 2026"


def numbers(values: Sequence[float]) -> str:
    """Numbers separated by commas, each with as many digits as give it back."""
    return ",".join(repr(float(value)) for value in values)


def flags(vector: BlisVector) -> str:
    """The two command-line flags; BLIS takes both or neither."""
    beta = numbers(vector.projection.beta.tolist())
    return f"--alpha-coeffs {numbers(vector.alpha)} --beta-coeffs {beta}"


def defaults_yaml(vector: BlisVector, facts: dict[str, Any]) -> str:
    """A file for ``--defaults-filepath``; facts are comments, since BLIS refuses unknown keys."""
    comments = [f"# {name}: {json.dumps(value)}" for name, value in facts.items()]
    beta = ", ".join(repr(value) for value in vector.projection.beta.tolist())
    alpha = ", ".join(repr(value) for value in vector.alpha)
    return "\n".join(
        [
            *comments,
            "trained_physics_coefficients:",
            f"  alpha_coeffs: [{alpha}]",
            f"  beta_coeffs: [{beta}]",
            "",
        ]
    )


def folder_name(configured: Configured, row: int) -> str:
    """A folder for one configuration, such as ``003_Llama-3.1-8B_H100-SXM_tp1``."""
    deployment = configured.deployments[row]
    parts = (
        f"{row + 1:03d}",
        deployment.model.name.split("/")[-1],
        deployment.gpu.name,
        f"tp{deployment.recipe.tensor_parallel_size}",
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(parts))


def write_configuration(
    configured: Configured, row: int, vectors: Sequence[BlisVector], out: Path
) -> None:
    """Write ``LOAD.yaml`` and ``LOAD.flags`` per vector into the configuration's folder."""
    folder = out / folder_name(configured, row)
    folder.mkdir(parents=True, exist_ok=True)
    source = configured.configurations[row].get("model")
    seen = asdict(blis_model(configured.deployments[row], source))
    for vector in vectors:
        facts = {
            "blis": BLIS_STATE,
            "configuration": configured.configurations[row],
            "coefficients": configured.sources[row],
            "provenance": configured.provenance,
            "load": vector.load,
            "mean_step_us": round(vector.mean_step_us, 1),
            "median_error": round(vector.projection.median_error, 5),
            "zeroed": list(vector.projection.zeroed),
            "blis_model": seen,
        }
        (folder / f"{vector.load}.yaml").write_text(defaults_yaml(vector, facts))
        (folder / f"{vector.load}.flags").write_text(flags(vector) + "\n")


def write_hardware(configured: Configured, path: Path) -> None:
    """The GPUs that occur, for ``--hardware-config``."""
    gpus = {d.gpu.name: hardware_entry(d.gpu) for d in configured.deployments}
    path.write_text(json.dumps(gpus, indent=2) + "\n")


def write_summary(
    configured: Configured, vectors: Sequence[Sequence[BlisVector]], path: Path
) -> None:
    """One line per vector: errors, what was zeroed, and the vector itself by name."""
    alpha_names = ("alpha_arrival_us", "alpha_completion_us", "alpha_output_token_us")
    header = (
        "folder", "load", "mean_step_us", "median_error", "zeroed", *alpha_names,
        *(f"beta_{name} [{unit}]" for name, unit in BASIS.items()),
    )  # fmt: skip
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row, found in enumerate(vectors):
            for v in found:
                writer.writerow(
                    [
                        folder_name(configured, row),
                        v.load,
                        repr(v.mean_step_us),
                        repr(v.projection.median_error),
                        " ".join(v.projection.zeroed),
                        *map(repr, v.alpha),
                        *map(repr, v.projection.beta.tolist()),
                    ]
                )
