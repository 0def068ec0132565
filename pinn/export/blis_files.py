"""Export of one folder per configuration for an unmodified BLIS, and of a coefficient table."""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from pinn.common import progress, tables
from pinn.common.files import json_text, write_whole
from pinn.errors import PinnError
from pinn.export import blis_model, blis_vectors
from pinn.export.blis_features import BASIS
from pinn.export.configured import Configured, engine_release
from pinn.simulator.workloads.load import load_workload
from pinn.simulator.workloads.workload import Workload

#: Versions of BLIS (inference-sim) that can read the exported files.
BLIS_STATE = "inference-sim up to commit f90a1e3a (2026-08-22); later versions need --target kernel"
Vectors = Sequence[blis_vectors.BlisVector]
ALPHA = ("alpha_arrival_us", "alpha_completion_us", "alpha_output_token_us")
#: Default maximum relative error of BLIS's step times that an export accepts.
WORST_ERROR = 0.25

_TEMPLATE = Path(__file__).with_name("blis_run.sh")
_PICK = Path(__file__).with_name("blis_pick.awk")


def coefficients_yaml(vector: blis_vectors.BlisVector, facts: dict[str, object]) -> str:
    """Return the content of a file for BLIS's ``--defaults-filepath``.

    Additional facts are written as comments, because BLIS rejects unknown keys.
    """
    comments = [f"# {name}: {json_text(value)}" for name, value in facts.items()]
    beta = ", ".join(repr(value) for value in vector.projection.beta.tolist())
    alpha = ", ".join(repr(value) for value in vector.alpha)
    values = [f"  alpha_coeffs: [{alpha}]", f"  beta_coeffs: [{beta}]"]
    return "\n".join([*comments, "trained_physics_coefficients:", *values, ""])


def vector_facts(vector: blis_vectors.BlisVector) -> dict[str, object]:
    """Return facts about a coefficient vector: its own load, and its errors under each load."""
    low, high = vector.taken
    facts: dict[str, object] = {
        "load": vector.load,
        "mean_step_us": round(vector.mean_step_us, 1),
        "median_step_error": round(vector.projection.median_error, 5),
        "zeroed": list(vector.projection.zeroed),
        "decodes": f"{vector.decodes:.1f} decode requests per step on average; valid from "
        f"{low:.1f} to {high:.1f} decode requests",
        "worst_batches": {kind: str(batch) for kind, batch in vector.kinds.items()},
        "prompts": f"at most {vector.prompts} prompts per step in 99 % of the steps with prompts",
    }
    if vector.shared:
        facts["shared_prompts"] = (
            f"the shared prompts of this load reduce step times by {100 * vector.shared:.1f} %, "
            f"which the coefficients include: for loads without shared prompts, step times are "
            f"too short"
        )
    for name, errors, sign in (
        ("step", vector.step_errors, ""),
        ("first_token", vector.first_token_errors, "+"),
    ):
        facts[f"{name}_error_under"] = {load: round(error, 4) for load, error in errors.items()}
        worst = max(errors, key=lambda load: abs(errors[load]))
        facts[f"worst_{name}_error"] = f"{100 * errors[worst]:{sign}.1f} % under {worst}"
    return facts


def folder_name(configured: Configured, row: int) -> str:
    """Return the name of a configuration's folder, such as ``003_Llama-3.1-8B_H100-SXM_tp1``."""
    deployment = configured.deployments[row]
    model, size = deployment.model.name.split("/")[-1], deployment.recipe.tensor_parallel_size
    return file_name(f"{row + 1:03d}_{model}_{deployment.gpu.name}_tp{size}")


def file_name(text: str) -> str:
    """Remove characters that are unsafe in file names or in a shell."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)


def write_configuration(
    configured: Configured,
    row: int,
    vectors: Vectors,
    kv_blocks: int,
    out: Path,
    worst_error: float = WORST_ERROR,
) -> None:
    """Write a configuration's folder, each file atomically and ``run.sh`` last.

    The files are ``config.json``; ``hardware.json``; ``loads.csv`` with one coefficient vector per
    load that the configuration can sustain; ``coefficients.yaml`` with the vector fitted to all
    loads together; and ``pick.awk``, with which ``run.sh`` finds the vector for a given load.

    Args:
        configured: Configurations with coefficients.
        row: Index of the configuration.
        vectors: Coefficient vectors as ``blis_vectors`` returns them.
        kv_blocks: Number of KV blocks as ``blis_kv_blocks`` returns it.
        out: Folder in which the configuration's folder is created.
        worst_error: Maximum relative step time error up to which ``run.sh`` uses the vector for all
            loads by default.
    """
    deployment = configured.deployments[row]
    folder = out / folder_name(configured, row)
    texts = {
        "config.json": json_text(blis_model.blis_config(deployment), indent=2) + "\n",
        "hardware.json": json_text(blis_model.blis_hardware(deployment.gpu), indent=2) + "\n",
        "pick.awk": _PICK.read_text(),
    }
    common = {
        "blis": BLIS_STATE,
        "engine": engine_release(deployment),
        "configuration": configured.configurations[row],
        "coefficients": configured.sources[row],
        "provenance": configured.provenance,
        "blis_model": asdict(blis_model.blis_model(deployment)),
    }
    *_, mix = vectors
    texts["coefficients.yaml"] = coefficients_yaml(mix, common | vector_facts(mix))
    kept = [vector_row(v) for v in vectors if not v.overloaded]
    tables.write_rows(kept, folder / "loads.csv")
    texts["run.sh"] = run_script(configured, row, vectors, kv_blocks, worst_error)
    for name, text in texts.items():
        write_whole(folder / name, text)
    (folder / "run.sh").chmod(0o755)


def run_script(
    configured: Configured, row: int, vectors: Vectors, kv_blocks: int, worst_error: float
) -> str:
    """Return a shell script that runs BLIS for one configuration."""
    deployment = configured.deployments[row]
    flags = blis_model.blis_flags(deployment, kv_blocks)
    note = "# total-kv-blocks are those that hold as many requests of mean length.\n"
    names = [v.load for v in vectors if not v.overloaded]
    steady = [name for name in names if blis_vectors.is_standard(name)]
    given = names[len(steady) :]
    error = abs(vectors[-1].worst.error)
    lost = [
        f'  {v.load}) fail "this configuration cannot keep up with {v.load}, so that there are no '
        'coefficients of it" ;;\n'
        for v in vectors
        if v.overloaded
    ]
    return _TEMPLATE.read_text().format(
        title=f"{deployment.model.name} on {deployment.gpu.name}",
        engine=engine_release(deployment),
        checkpoint=str(configured.provenance.get("checkpoint_sha256", ""))[:16],
        state=BLIS_STATE,
        mix=blis_vectors.MIX,
        note=note if deployment.model.window_tokens is not None else "",
        blocks=kv_blocks,
        otherwise=blis_vectors.MIX if error <= worst_error else "",
        error=f"{100 * error:.0f}",
        lost="".join(lost),
        choices=", ".join([f"{names[0]} to {names[len(steady) - 1]} (loads.csv)", *given]),
        flags=" \\\n".join(f"  --{name} {shlex.quote(value)}" for name, value in flags.items()),
    )


def _error(batch: blis_vectors.WorstBatch | None) -> float | None:
    return None if batch is None else round(batch.error, 5)


def vector_row(v: blis_vectors.BlisVector) -> dict[str, object]:
    """Return a row of ``loads.csv``: the coefficients by name, their load, and step time errors."""
    replicas, beta = v.replicas, v.projection.beta.tolist()
    return {
        "load": v.load,
        "decodes": round(v.decodes * replicas, 4),
        "prompt_tokens": v.lengths.prompt,
        "output_per_s": round(v.output_per_s, 3),
        "prompt_token_us": round(v.prompt_us, 4),
        "arrival_prompt_token_us": round(v.arrival_prompt_us, 6),
        "for_decodes": f"{v.taken[0] * replicas:.1f} to {v.taken[1] * replicas:.1f}",
        "prompts_at_once": v.prompts,
        "worst_batch_error": round(v.worst.error, 5),
        "worst_batch": str(v.worst),
        **{f"worst {kind}": _error(v.kinds.get(kind)) for kind in blis_vectors.KINDS},
        "median_error": round(v.projection.median_error, 6),
        "mean_step_us": round(v.mean_step_us, 2),
        "shared_prompts_save": round(v.shared, 5),
        "overloaded": str(v.overloaded).lower(),
        "zeroed": " ".join(v.projection.zeroed),
        **dict(zip(ALPHA, v.alpha, strict=True)),
        **{f"beta_{name} [{unit}]": b for (name, unit), b in zip(BASIS.items(), beta, strict=True)},
    }


def write_summary(configured: Configured, vectors: Mapping[int, Vectors], path: Path) -> None:
    """Write a table with the rows of all configurations' ``loads.csv``."""
    rows = [
        {"folder": folder_name(configured, row)} | vector_row(v)
        for row, found in vectors.items()
        for v in found
    ]
    tables.write_rows(rows, path)


# Folders of many configurations, and their printed summary.


def write_folders(
    configured: Configured, files: Sequence[Path], out: Path, worst_error: float, skip: bool
) -> None:
    """Write a folder for each configuration and a summary table; print folder names and errors.

    Args:
        configured: Configurations with coefficients.
        files: Files of loads that the configurations will serve, exported in addition to the steady
            loads.
        out: Folder in which the configurations' folders are created.
        worst_error: Maximum accepted relative error of a step time.
        skip: Whether to skip configurations that cannot be exported.

    Raises:
        PinnError: If a load cannot be read or named, or a configuration cannot be exported.
    """
    loads, found = _named_loads(files), {}
    for row in progress.counted(range(len(configured)), "configuration"):
        try:
            found[row] = _write_folder(configured, row, loads, out, worst_error)
        except PinnError as error:
            if not skip:
                raise PinnError(f"configuration {row + 1}: {error}") from error
            print(f"configuration {row + 1} skipped: {error}")
    if found:
        write_summary(configured, found, out / "summary.csv")
        _print_errors(list(found.values()))


def _named_loads(files: Sequence[Path]) -> list[Workload]:
    """Read loads from files, with names that are safe in file names and in a shell."""
    loads = [load_workload(path) for path in files]
    loads = [replace(load, name=file_name(load.name)) for load in loads]
    counts = Counter([blis_vectors.MIX, *(load.name for load in loads)])
    taken = (name for name, count in counts.items() if count > 1 or blis_vectors.is_standard(name))
    twice = next(taken, None)
    if twice is not None:
        raise PinnError(
            f"--workload: the name {twice!r} is already used by another load, a steady load or "
            f"the mix of all loads ({blis_vectors.MIX}), but loads need distinct names: rename "
            "the file"
        )
    return loads


def _write_folder(
    configured: Configured, row: int, loads: list[Workload], out: Path, worst_error: float
) -> list[blis_vectors.BlisVector]:
    blis_model.check_expressible(configured.deployments[row])
    blocks = blis_model.blis_kv_blocks(
        configured.deployments[row], blis_vectors.typical_tokens(configured, row, loads)
    )
    vectors = blis_vectors.blis_vectors(configured, row, loads)
    worst = blis_vectors.worst_taken(vectors)
    if abs(worst.worst.error) > worst_error:
        raise PinnError(
            f"the error of BLIS's formula would be {worst.worst} with the coefficients for "
            f"{worst.load}, more than --worst-error {worst_error:g}: raise --worst-error, or use "
            "the Go adapter with 'pinn export table', which has no such error"
        )
    write_configuration(configured, row, vectors, blocks, out, worst_error)
    print(folder_name(configured, row))
    steady = [v for v in vectors if blis_vectors.is_standard(v.load)]
    named = {f"{len(steady)} steady loads": worst} | {v.load: v for v in vectors if v not in steady}
    for name, v in named.items():
        note = "overloaded: no coefficients written" if v.overloaded else f"worst error {v.worst}"
        print(f"  {name:16} {note}")
    several = [v.several for v in steady if v.several is not None]
    if several:
        print(f"  {'several prompts':16} {max(several, key=lambda batch: abs(batch.error))}")
    return vectors


def _print_errors(found: list[list[blis_vectors.BlisVector]]) -> None:
    mixed = [vectors[-1] for vectors in found]
    picked = [blis_vectors.worst_taken(vectors) for vectors in found]
    for name, each in (("picked by run.sh", picked), ("one for all loads", mixed)):
        worst = max(each, key=lambda v: abs(v.worst.error))
        median = 100 * np.median([abs(v.worst.error) for v in each])
        print(
            f"largest step time error of BLIS (coefficients: {name}):\n"
            f"  median over {len(found)} configurations {median:.1f} %, largest {worst.worst}"
        )
