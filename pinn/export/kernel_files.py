"""Registry, catalog entries, scenarios and README for BLIS's latency kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from pinn.common import JsonObject, progress, tables
from pinn.common.files import json_text, write_whole
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.export import kernel_documents as documents
from pinn.export.blis_model import check_expressible
from pinn.export.blis_vectors import latency_of
from pinn.export.configured import Configured, engine_release
from pinn.export.kernel_fit import (
    MOST_PROMPTS,
    SHORTEST_CONTEXT,
    SHORTEST_PROMPT,
    ErrorLimit,
    error_limit,
    errors_by_kind,
    project_law,
)
from pinn.export.kernel_law import Seconds
from pinn.memory.kv_layout import max_model_len

#: Release of the latency kernel whose coefficient names and step-time law the documents use.
KERNEL = "blis-latency-kernel 0.1"
_README = Path(__file__).with_name("kernel_readme.md")


@dataclass(frozen=True)
class KernelErrors:
    """Relative errors of step times from BLIS's latency kernel, compared with the surrogate's.

    Attributes:
        kinds: Relative error of each batch, law / surrogate - 1, by type of step; the law is the
            latency kernel's formula.
    """

    kinds: dict[str, Seconds]

    @property
    def sizes(self) -> Seconds:
        """Return the absolute relative errors of all batches, over all types of steps."""
        return np.abs(np.concatenate(list(self.kinds.values())))

    def exceed(self, limit: ErrorLimit) -> bool:
        """Return whether the median or maximum absolute relative error exceeds its ``limit``."""
        return bool(np.median(self.sizes) > limit.median or self.sizes.max() > limit.worst)

    def row(self) -> JsonObject:
        """Return median and maximum errors over all steps and over each type, as JSON values."""
        found: JsonObject = {}
        for kind, errors in {"all steps": self.sizes, **self.kinds}.items():
            found[f"median {kind}"] = round(float(np.median(np.abs(errors))), 5)
            found[f"largest {kind}"] = round(float(np.abs(errors).max()), 5)
        return found

    def __str__(self) -> str:
        texts = [
            f"{kind} {100 * np.median(np.abs(errors)):.1f} % (largest "
            f"{100 * float(errors[np.abs(errors).argmax()]):+.1f} %)"
            for kind, errors in self.kinds.items()
        ]
        return f"median APE {', '.join(texts)}"


def write_registry(
    configured: Configured, out: Path, worst_error: float | None, skip: bool
) -> None:
    """Write registry, catalog and scenarios of all configurations, and print step time errors.

    Args:
        configured: Configurations with coefficients.
        out: Folder to create.
        worst_error: Maximum accepted relative error of a step time; None for the default limits of
            the median and the maximum error.
        skip: Whether to skip configurations that cannot be exported.

    Raises:
        PinnError: If a configuration cannot be exported.
    """
    rows: dict[str, JsonObject] = {}
    chips: dict[str, JsonObject] = {}
    for row in progress.counted(range(len(configured)), "configuration"):
        gpu = configured.deployments[row].gpu
        try:
            found = _write_set(configured, row, out, worst_error, taken=list(rows))
        except PinnError as error:
            if not skip:
                raise PinnError(f"configuration {row + 1}: {error}") from error
            print(f"configuration {row + 1} skipped: {error}")
            continue
        rows[str(found["name"])] = found
        if gpu.name not in documents.CHIPS:
            chips[documents.chip_name(gpu)] = documents.chip_file(gpu)
    if rows:
        _write_catalog(out, chips)
        tables.write_rows(list(rows.values()), out / "summary.csv")
        write_whole(out / "README.md", _readme(configured, list(rows.values()), list(chips)))


def _write_set(
    configured: Configured, row: int, out: Path, worst_error: float | None, taken: list[str]
) -> JsonObject:
    """Write a configuration's coefficient set and run file, and return its summary row."""
    deployment, latency = configured.deployments[row], latency_of(configured, row)
    check_expressible(deployment)
    documents.check_kernel(deployment)
    name = documents.set_name(deployment)
    if name in taken:
        raise PinnError(
            f"the coefficient set {name} is already written for another configuration, and its "
            "scope cannot distinguish the two: export the configurations into separate folders"
        )
    usual = error_limit(deployment)
    limit = usual if worst_error is None else ErrorLimit(np.inf, worst_error)
    law = project_law(latency, limit.worst)
    errors = KernelErrors(errors_by_kind(latency, law))
    if errors.exceed(limit):
        raise PinnError(_refusal(name, errors, limit))
    print(f"{name}\n  {errors}")
    release, digest = engine_release(deployment), _digest(configured)
    rationale = (
        f"projected from coefficients of {configured.sources[row]} by "
        f"{configured.provenance.get('exporter', 'pinn')} (checkpoint {digest[:16]}, step times "
        f"of {release})"
    )
    facts = {
        "kernel": KERNEL, "engine": release, "checkpoint_sha256": digest,
        "configuration": configured.configurations[row], "step_errors": str(errors),
        "range": _range(deployment),
    }  # fmt: skip
    entries = documents.coefficient_entries(latency, law, rationale)
    text = "".join(f"# {key}: {json_text(value)}\n" for key, value in facts.items())
    text += _yaml({"kind": "CoefficientSet", "name": name, "coefficients": entries})
    write_whole(out / "registry" / "coefficients" / f"{name}.yaml", text)
    run = _yaml(*documents.run_documents(deployment, name))
    write_whole(out / "scenarios" / f"{name}.yaml", run)
    return {"name": name, "engine": release, "checkpoint_sha256": digest} | errors.row()


def _refusal(name: str, errors: KernelErrors, limit: ErrorLimit) -> str:
    """Return the error message for a configuration whose step time errors exceed the limit."""
    size, bounds = errors.sizes, []
    if np.isfinite(limit.median):
        bounds.append(f"a median of {100 * limit.median:g} %")
    bounds.append(f"{100 * limit.worst:g} % for any step")
    return (
        f"{name}: step times from the formula of BLIS's kernel would have a median APE of "
        f"{100 * np.median(size):.1f} % and errors of up to {100 * size.max():.1f} %, beyond "
        f"{' or '.join(bounds)} ({errors}): set --worst-error above these errors, or use the Go "
        "adapter with 'pinn export table', which has no such error"
    )


def _digest(configured: Configured) -> str:
    return str(configured.provenance.get("checkpoint_sha256", ""))


def _range(deployment: Deployment) -> str:
    """Return the ranges of prompts, decodes and lengths of the fitted batches, as text."""
    recipe, longest = deployment.recipe, max_model_len(deployment)
    return (
        f"0 to {MOST_PROMPTS} prompts of {SHORTEST_PROMPT} to {longest} tokens, with at most "
        f"{recipe.token_budget} tokens per step, and 0 to {recipe.max_requests} decodes with "
        f"contexts of {SHORTEST_CONTEXT} to {longest} tokens"
    )


def _write_catalog(out: Path, chips: dict[str, JsonObject]) -> None:
    catalog = out / "catalog"
    for name, chip in chips.items():
        write_whole(catalog / "hardware" / f"{name}.yaml", _yaml(chip))
    workload = catalog / "workloads" / f"{documents.WORKLOAD_NAME}.yaml"
    write_whole(workload, _yaml(documents.WORKLOAD))


def _yaml(*found: JsonObject) -> str:
    return yaml.dump_all(found, Dumper=_Plain, sort_keys=False, width=100)


class _Plain(yaml.SafeDumper):
    """YAML writer that repeats identical values instead of using anchors."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        """Return True for every value, so that identical values are written out each time."""
        return True


def _readme(configured: Configured, rows: list[JsonObject], chips: list[str]) -> str:
    """Return the text of README.md, which describes the exported documents and their errors."""
    kinds = ("all steps", "decodes alone", "one prompt", "more prompts")
    lines = [
        f"| {row['name']} | {row['engine']} | "
        + " | ".join(_percentages(row, kind) for kind in kinds)
        + " |"
        for row in rows
    ]
    gpus = {documents.chip_name(d.gpu): documents.chip_file(d.gpu) for d in configured.deployments}
    shown = ("TFlopsPeak", "TFlopsFP8", "TFlopsNVFP4", "BwPeakTBs", "MemoryGiB")
    peaks = [
        f"| {name} | " + " | ".join(_number(chip.get(key)) for key in shown) + " |"
        for name, chip in sorted(gpus.items())
    ]
    lacking = f" `catalog/hardware` has what BLIS's catalog lacks: {', '.join(chips)}."
    return _README.read_text().format(
        kernel=KERNEL, version=documents.ENGINE_VERSION, chips=lacking if chips else "",
        digest=_digest(configured), rows="\n".join(lines), peaks="\n".join(peaks),
        most=MOST_PROMPTS, prompt=SHORTEST_PROMPT, context=SHORTEST_CONTEXT,
    )  # fmt: skip


def _percentages(row: JsonObject, kind: str) -> str:
    if f"median {kind}" not in row:
        return "-"
    both = (float(str(row[f"{each} {kind}"])) for each in ("median", "largest"))
    return " / ".join(f"{100 * value:.1f}" for value in both)


def _number(value: object) -> str:
    return "-" if value is None else f"{float(str(value)):.6g}"
