"""Coefficients of one configuration: gathered, printed and written as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from pinn.cli import report_parts
from pinn.common.files import find_checkpoint
from pinn.common.screen import WIDEST, WIDTH, Column, Grid, page
from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import measured_line
from pinn.specs.batch import Batch, parse_batch
from pinn.specs.serving import VLLM
from pinn.surrogate import surrogate
from pinn.surrogate.coefficient_set import (
    NAMED,
    CoefficientSet,
    deployment_facts,
    read_coefficient_set,
    set_to_json,
)
from pinn.surrogate.uncertainty.training_space import training_space
from pinn.units import MICROSECOND

#: Most inputs outside the training range that the sentence names.
_NAMED = 4
_MORE = "More: --recipe (what the engine runs), --betas (coefficients), --json FILE (all of it)."
_SPECULATIVE = (
    "Steps draft and verify tokens. No such step was measured: 90 % intervals are those of plain "
    "steps, and time per token rests on the acceptance above."
)


def make_report(
    found: CoefficientSet, deployment: Deployment, batches: Sequence[str], distance: dict[str, Any]
) -> dict[str, Any]:
    """Everything about one configuration, ready for JSON and in SI units but for batches.

    A coefficient set as :func:`pinn.surrogate.set_to_json` gives it, for this
    deployment, with the name ``asked_as``, its ``recipe`` (field to value, ``set_by`` and source),
    ``sampling``, ``memory`` (see :func:`memory_entry`), ``batches``, a list of ``batch``,
    ``step_time_us``, ``floor_us`` and ``marks`` (see :func:`batch_marks`), and the ``distance``.

    Args:
        found: The coefficients.
        deployment: The configuration.
        batches: Batches to time, as written on the command line.
        distance: How far it lies from what was measured, with a ``sentence``.
    """
    parsed = [parse_batch(text) for text in batches]
    rows = zip(
        batches,
        parsed,
        surrogate.batch_seconds(found.beta, deployment, parsed).tolist(),
        surrogate.batch_floor_seconds(deployment, parsed).tolist(),
        report_parts.batch_marks(parsed, deployment),
        strict=True,
    )
    timed = [
        {
            "batch": text,
            "step_time_us": seconds / MICROSECOND,
            **_per_token(deployment, batch, seconds),
            "floor_us": floor / MICROSECOND,
            "marks": marks,
        }
        for text, batch, seconds, floor, marks in rows
    ]
    return (
        set_to_json(found)
        | deployment_facts(deployment)
        | {
            "asked_as": deployment.model.title,
            "recipe": deployment.recipe.described(),
            **report_parts.notices(deployment.serving),
            "sampling": asdict(deployment.sampling),
            "memory": report_parts.memory_entry(deployment),
            "batches": timed,
            "distance": distance,
        }
    )


def _per_token(deployment: Deployment, batch: Batch, seconds: float) -> dict[str, float]:
    """What a step takes for each token that a decode gets of it; nothing without speculation."""
    drafts = deployment.recipe.speculation
    if drafts is None or all(batch.is_prefill):
        return {}
    return {"itl_per_token_us": seconds / drafts.tokens_per_step / MICROSECOND}


def one_set(
    given: dict[str, Any], checkpoint: Path | None, path: Path | None
) -> tuple[CoefficientSet, Deployment]:
    """The coefficients of one configuration, and its deployment.

    What the user called model, GPU and format is in the set's deployment as ``named``.

    Args:
        given: The configuration.
        checkpoint: Trained network; None for the usual one.
        path: Coefficients in place of the network, or None.
    """
    configuration = canonical(given)
    if path is None:
        deployment = make_deployment(configuration)
        found = network_set(surrogate.Surrogate.load(find_checkpoint(checkpoint)), deployment)
    else:
        found = read_coefficient_set(path)
        configuration = canonical(found.configuration() | given)
        deployment = make_deployment(configuration)
        found.check_deployment(deployment, str(path))
    named = {k: configuration[k] for k in NAMED if k in configuration}
    return replace(found, deployment=found.deployment | {"named": named}), deployment


def network_set(network: surrogate.Surrogate, deployment: Deployment) -> CoefficientSet:
    """The coefficients that a network gives."""
    facts = deployment_facts(deployment)
    return CoefficientSet(facts, network.coefficients([deployment]), network.taught_alphas())


def one_report(
    given: dict[str, Any], batches: Sequence[str], checkpoint: Path | None, path: Path | None
) -> dict[str, Any]:
    """What is written of one configuration with its ``batches`` timed, as of :func:`one_set`."""
    found, deployment = one_set(given, checkpoint, path)
    used = find_checkpoint(checkpoint) if path is None else None
    return report_of(found, deployment, batches, used)


def report_of(
    found: CoefficientSet, deployment: Deployment, batches: Sequence[str], checkpoint: Path | None
) -> dict[str, Any]:
    """The report of the coefficients of the network ``checkpoint``, or, with None, of a file."""
    if checkpoint is not None:
        distance = _distance(surrogate.Surrogate.load(checkpoint), deployment)
        report = make_report(found, deployment, batches, distance)
        return report_parts.with_trust(report, checkpoint, deployment)
    names = ", ".join(source["path"] for source in found.calibration.get("sources", ()))
    text = f"Calibrated to {names}." if names else "Coefficients from a file, not the network."
    report = make_report(found, deployment, batches, {"sentence": text})
    if found.covariance is None:
        return report
    return report_parts.with_posterior(report, found, deployment)


def _distance(network: surrogate.Surrogate, deployment: Deployment) -> dict[str, Any]:
    space = training_space(network.checkpoint)
    located = space.locate([deployment])
    measured = located.nearest[0] >= 0
    held_out = sorted(space.held_out_distances().tolist())
    found = {
        "nearest_measured": space.names[located.nearest[0]] if measured else None,
        "distance": float(located.distance[0]) if measured else None,
        "left_out_models": [held_out[0], held_out[-1]] if held_out else None,
        "outside_training_range": located.outside_names(0),
    }
    return found | {"sentence": _sentence(found)}


def _sentence(found: dict[str, Any]) -> str:
    """The distance in plain words."""
    if found["nearest_measured"] is None:
        return "The checkpoint names no measured deployments, so the distance is unknown."
    away, span = found["distance"], found["left_out_models"]
    text = (
        f"The nearest measured deployment is {found['nearest_measured']}, {away:.1f} standard "
        "deviations away."
    )
    if span:
        text += f" Models left out in the evaluation lay {span[0]:.1f} to {span[1]:.1f} away."
    outside = [f"{name} ({by:+.1f})" for name, by in found["outside_training_range"].items()]
    if not outside:
        return f"{text} Every input lies inside the training range."
    named = ", ".join(outside[:_NAMED])
    more = f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
    return f"{text} Outside the training range: {named}{more}."


def print_report(report: dict[str, Any], recipe: bool = False, betas: bool = False) -> None:
    """Print the report for people: what was understood, then the times of its batches.

    Args:
        report: Of :func:`make_report`.
        recipe: What the engine runs, and what set it, in place of the times.
        betas: Coefficients, in place of the times.
    """
    details = recipe or betas
    console = page(WIDEST if details else WIDTH)
    flags = ", ".join(f"{k} {v}" for k, v in report["serving"].items() if _worth_showing(k, v))
    console.print(f"{report['asked_as']} on {report['gpu']}: {flags}")
    serving = report["serving"]
    console.print(measured_line(serving.get("engine", VLLM), serving.get("engine_version", "")))
    console.print(report_parts.memory_line(report["memory"]) + "\n")
    if recipe:
        report_parts.print_recipe(report["recipe"], console)
        console.print(f"weights and cache: {_listed(report['precisions'])}")
        console.print(f"sampling: {_listed(report['sampling'])}\n")
    if betas:
        console.print(_entries("beta: step time = sum of beta x feature", report["beta"]))
        console.print()
        console.print(_entries("alpha: time of a request outside the steps", report["alpha"]))
    if not details:
        _print_steps(report, console)


def _print_steps(report: dict[str, Any], console: Console) -> None:
    """The batches' times, what is said of them, and where the rest is."""
    console.print(_batch_table(report["batches"]))
    console.print()
    for line in report_parts.marks_lines(report["batches"]):
        console.print(line + "\n")
    if report["recipe"]["speculation"]["value"] is not None:
        console.print(_SPECULATIVE + "\n")
    if "intervals" in report:
        console.print(report_parts.intervals_line(report["intervals"]))
    console.print(report["distance"]["sentence"])
    console.print(_MORE)


def _worth_showing(name: str, value: Any) -> bool:
    if name.endswith("parallel_size"):
        return name.startswith("tensor") or value > 1
    return bool(name.startswith(("enable_", "enforce_", "engine")) and value)


def _listed(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _entries(title: str, entries: dict[str, dict[str, Any]]) -> Grid:
    multiplier = "x datasheet time" if title.startswith("beta") else "x step time"
    bounded = any("low" in entry for entry in entries.values())
    table = Grid.of(
        Column("name", True, folds=False), "value", *["90 % interval"] * bounded,
        Column("unit", True), Column("note", True), caption=title,
    )  # fmt: skip
    for name, entry in entries.items():
        unit, scale = entry["unit"], 1.0
        if unit.split("/")[0] == "s":
            unit, scale = f"u{unit}", MICROSECOND
        ends = [_ends(entry, scale)] if bounded else []
        unit = multiplier if unit == "1" else unit
        table.add(name, f"{entry['value'] / scale:.3f}", *ends, unit, _notes(entry))
    return table


def _ends(entry: dict[str, Any], scale: float) -> str:
    if "low" not in entry or not entry["high"]:
        return "-"
    return f"{entry['low'] / scale:.3f} to {entry['high'] / scale:.3f}"


def _notes(entry: dict[str, Any]) -> str:
    return "" if entry.get("taught", True) else "prior only"


def _batch_table(batches: list[dict[str, Any]]) -> Grid:
    """Times of batches in milliseconds, and the tokens that go through them each second."""
    bounded = any("step_time_low_us" in entry for entry in batches)
    drafted = any("itl_per_token_us" in entry for entry in batches)
    table = Grid.of(
        Column("step of", True, folds=False), "ms", *["90 % interval"] * bounded,
        *["per token"] * drafted, "tokens/s",
    )  # fmt: skip
    for entry in batches:
        step, token = entry["step_time_us"], entry.get("itl_per_token_us")
        cells = [entry["batch"], _ms(step)]
        if bounded:
            low, high = (_ms(entry[f"step_time_{end}_us"], 3) for end in ("low", "high"))
            cells.append(f"{low} to {high}")
        if drafted:
            cells.append("-" if token is None else _ms(token))
        rate = f"{_tokens(entry) / (step * MICROSECOND):,.0f}" if step else "-"
        table.add(*cells, rate)
    return table


def _ms(microseconds: float, digits: int = 4) -> str:
    return f"{microseconds / 1e3:#.{digits}g}".rstrip(".")


def _tokens(entry: dict[str, Any]) -> float:
    """Prompt tokens that a step computes and tokens that its decodes get of it."""
    batch = parse_batch(entry["batch"])
    decodes = len(batch) - int(sum(batch.is_prefill))
    each = entry["step_time_us"] / entry.get("itl_per_token_us", entry["step_time_us"])
    return batch.tokens - decodes + decodes * each
