"""A folder per configuration that an unmodified BLIS runs as it is, and a summary of all."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pinn.export.blis_config import blis_config, blis_flags, blis_hardware
from pinn.export.blis_features import BASIS
from pinn.export.blis_model import blis_model
from pinn.export.blis_vectors import MIX, BlisVector
from pinn.export.configured import Configured
from pinn.specs.files.csv_cells import write_rows
from pinn.specs.files.write import write_whole

#: State of BLIS that the files are for.
BLIS_STATE = "inference-sim of August 2026"

_RUN = """\
#!/bin/sh
# {title}. What BLIS shall serve goes behind it:
#   ./run.sh --workload-spec LOAD.yaml
# BLIS names its program (blis on the path by default). Coefficients are {default}; LOAD
# names one of {loads} to take its own.
{note}here=$(cd "$(dirname "$0")" && pwd)
exec "${{BLIS:-blis}}" run \\
{flags} \\
  --hardware-config "$here/hardware.json" \\
  --model-config-folder "$here" \\
  --defaults-filepath "$here/coefficients${{LOAD:+.$LOAD}}.yaml" \\
  "$@"
"""


def coefficients_yaml(vector: BlisVector, facts: dict[str, Any]) -> str:
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


def vector_facts(vector: BlisVector) -> dict[str, Any]:
    """What a vector says of itself: its error, and what it costs to take it for another load."""
    facts: dict[str, Any] = {
        "load": vector.load,
        "mean_step_us": round(vector.mean_step_us, 1),
        "median_step_error": round(vector.projection.median_error, 5),
        "zeroed": list(vector.projection.zeroed),
    }
    if vector.overloaded:
        facts["overloaded"] = "requests queue up; the queue decides their latencies"
    for name, errors, sign in (
        ("step", vector.step_errors, ""),
        ("first_token", vector.first_token_errors, "+"),
    ):
        facts[f"{name}_error_under"] = {load: round(error, 4) for load, error in errors.items()}
        worst = max(errors, key=lambda load: abs(errors[load]))
        facts[f"worst_{name}_error"] = f"{100 * errors[worst]:{sign}.1f} % under {worst}"
    return facts


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
    configured: Configured, row: int, vectors: Sequence[BlisVector], kv_blocks: int, out: Path
) -> None:
    """Write a configuration's folder, each file whole; ``run.sh`` comes last.

    ``config.json``, ``hardware.json``, ``run.sh``; ``coefficients.yaml`` of all loads or the only
    one, and beside the former a ``coefficients.LOAD.yaml`` for each.

    Args:
        configured: Configurations with coefficients.
        row: Which of them.
        vectors: Of ``blis_vectors``.
        kv_blocks: Of ``blis_kv_blocks``.
        out: Folder of the folders.
    """
    deployment = configured.deployments[row]
    folder = out / folder_name(configured, row)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "config.json": json.dumps(blis_config(deployment), indent=2) + "\n",
        "hardware.json": json.dumps(blis_hardware(deployment.gpu), indent=2) + "\n",
    }
    common = {
        "blis": BLIS_STATE,
        "configuration": configured.configurations[row],
        "coefficients": configured.sources[row],
        "provenance": configured.provenance,
        "blis_model": asdict(blis_model(deployment)),
    }
    for vector in vectors:
        load = "" if vector is vectors[-1] else f".{vector.load}"
        texts[f"coefficients{load}.yaml"] = coefficients_yaml(vector, common | vector_facts(vector))
    texts["run.sh"] = run_script(configured, row, vectors, kv_blocks)
    for name, text in texts.items():
        write_whole(folder / name, text)
    (folder / "run.sh").chmod(0o755)


def run_script(
    configured: Configured, row: int, vectors: Sequence[BlisVector], kv_blocks: int
) -> str:
    """The command line of one configuration, for a shell."""
    deployment = configured.deployments[row]
    flags = blis_flags(deployment, kv_blocks)
    windowed = deployment.model.window_tokens is not None
    mixed = [v.load for v in vectors if v.load != MIX and not v.overloaded]
    return _RUN.format(
        title=f"{deployment.model.name} on {deployment.gpu.name} as its coefficients have it",
        loads=", ".join(v.load for v in vectors if v.load != MIX),
        default=f"those of {', '.join(mixed or ['all loads'])}",
        note="# total-kv-blocks are those that hold as many requests of mean length.\n"
        if windowed
        else "",
        flags=" \\\n".join(f"  --{name} {shlex.quote(value)}" for name, value in flags.items()),
    )


def write_summary(
    configured: Configured, vectors: Mapping[int, Sequence[BlisVector]], path: Path
) -> None:
    """One line per vector of each row: errors, what was zeroed, and the vector itself by name."""
    alpha_names = ("alpha_arrival_us", "alpha_completion_us", "alpha_output_token_us")
    beta_names = [f"beta_{name} [{unit}]" for name, unit in BASIS.items()]
    rows = [
        {
            "folder": folder_name(configured, row),
            "load": v.load,
            "overloaded": str(v.overloaded).lower(),
            "mean_step_us": v.mean_step_us,
            "median_error": v.projection.median_error,
            "zeroed": " ".join(v.projection.zeroed),
            **dict(zip(alpha_names, v.alpha, strict=True)),
            **dict(zip(beta_names, v.projection.beta.tolist(), strict=True)),
        }
        for row, found in vectors.items()
        for v in found
    ]
    write_rows(rows, list(rows[0]), path)
