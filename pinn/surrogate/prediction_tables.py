"""Tables of a prediction for a terminal and for a notebook."""

from __future__ import annotations

import html as markup
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from pinn.common.numbers import number
from pinn.common.screen import WIDEST, WIDTH, Column, Grid, page
from pinn.engines.assumptions import assumption_lines
from pinn.engines.recipe import ASSUMED, DESIGN, FLAG
from pinn.memory.ledger_text import ledger_grid, log_grid
from pinn.surrogate.coefficient_set import deployment_facts
from pinn.surrogate.coefficients import REGISTRIES
from pinn.units import MICROSECOND

if TYPE_CHECKING:
    from rich.console import Console

    from pinn.engines.recipe import EffectiveRecipe
    from pinn.surrogate.prediction import Prediction, StepTime

_MORE = (
    "More: --recipe (resolved engine configuration), --memory (GPU memory by part),\n"
    "--betas (coefficients), --json FILE (everything)."
)
_SPECULATIVE = (
    "Steps include drafting and verification, which were never measured: 90 % "
    "intervals are those of steps without them, and times per token assume the "
    "stated acceptance rate."
)
#: Maximum number of CUDA graph sizes to print; of further sizes, only the last one is printed.
_LISTED = 4


def print_prediction(found: Prediction, recipe: bool, betas: bool, memory: bool) -> None:
    """Print the configuration of a prediction, then step times or the requested details."""
    steps = found.steps  # raises an error for an unreadable batch before anything is printed
    console = page(WIDEST if recipe or betas else WIDTH)
    console.print(_title(found))
    for line in assumption_lines(found.deployment, bool(found.coefficients.calibration)):
        console.print(line)
    console.print(f"{found.memory}\n")
    if memory:
        console.print(ledger_grid(found.memory))
        console.print()
        console.print(log_grid(found.memory))
    if recipe:
        console.print(_recipe_table(found.deployment.recipe))
        console.print()
        formats = deployment_facts(found.deployment)["precisions"]
        console.print(f"weights and cache: {_listed(formats)}")
        console.print(f"sampling: {_listed(asdict(found.deployment.sampling))}\n")
    if betas:
        console.print(_coefficient_table(found, "beta"))
        console.print()
        console.print(_coefficient_table(found, "alpha"))
    if not (recipe or betas or memory):
        _print_steps(found, steps, console)


def html(found: Prediction) -> str:
    """Return a prediction's title, table of step times and sentences as HTML."""
    evidence = found.evidence
    encoder = "" if found.encoder is None else _sentence(found.encoder.sentence)
    lines = [*_marks_lines(found.steps), encoder, evidence.intervals_line(), evidence.sentence]
    said = "".join(f"<p>{markup.escape(line)}</p>" for line in lines if line)
    title = f"<p>{markup.escape(_title(found))}<br>{markup.escape(str(found.memory))}</p>"
    return f"<div>{title}{_step_table(found.steps).html()}{said}</div>"


def _marks_lines(steps: Sequence[StepTime]) -> list[str]:
    """Return a line for each batch that exceeds limits, with all of these limits."""
    return [f"{s.batch}: {'; '.join(s.marks)}." for s in steps if s.marks]


def _sentence(clause: str) -> str:
    """Turn a clause into a sentence, with a capital letter and a period."""
    return f"{clause[0].upper()}{clause[1:]}."


def _print_steps(found: Prediction, steps: Sequence[StepTime], console: Console) -> None:
    console.print(_step_table(steps))
    console.print()
    for line in _marks_lines(steps):
        console.print(line + "\n")
    if found.deployment.recipe.speculation is not None:
        console.print(_SPECULATIVE + "\n")
    if found.encoder is not None:
        console.print(_sentence(found.encoder.sentence) + "\n")
    if line := found.evidence.intervals_line():
        console.print(line)
    console.print(found.evidence.sentence)
    console.print(_MORE)


def _title(found: Prediction) -> str:
    serving = asdict(found.deployment.serving)
    flags = ", ".join(f"{k} {v}" for k, v in serving.items() if _worth_showing(k, v))
    return f"{found.deployment.model.title} on {found.deployment.gpu.name}: {flags}"


def _worth_showing(name: str, value: object) -> bool:
    if isinstance(value, int) and name.endswith("parallel_size"):
        return name.startswith("tensor") or value > 1
    return bool(name.startswith(("enable_", "enforce_", "engine")) and value)


def _listed(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


# Table of the resolved engine configuration: value and origin of each setting.


def _recipe_table(recipe: EffectiveRecipe) -> Grid:
    field, value = Column("field", True, folds=False), Column("value", True, most=44)
    table = Grid.of(field, value, Column("set by", True), caption="resolved engine configuration")
    for name, entry in recipe.described().items():
        kind, source = str(entry["set_by"]), str(entry["source"])
        said = {FLAG: source, ASSUMED: f"ASSUMED: {source}", DESIGN: "engine's design"}
        table.add(name, _shown(entry["value"]), said.get(kind, kind))
    return table


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items() if each != "")
    if not isinstance(value, list):
        return str(value)
    if len(value) <= _LISTED:
        return " ".join(map(str, value)) or "-"
    return f"{' '.join(map(str, value[:_LISTED]))} .. {value[-1]}"


#: Title of the table of each part of the coefficients, and unit of its coefficients without their
#: own unit.
_PARTS = {
    "beta": (
        "coefficients (beta) of a step's time: host + max(launch, GPU), each a sum of beta x "
        "feature",
        "x datasheet time",
    ),
    "alpha": ("coefficients (alpha) of a request's latency outside engine steps", "x step time"),
}


def _coefficient_table(found: Prediction, part: str) -> Grid:
    """Return the table of alphas or betas, in us or as multipliers, with intervals if known."""
    title, multiplier = _PARTS[part]
    features, values = REGISTRIES[part].values(), getattr(found, part)
    taught = [True] * len(features) if part == "beta" else found.coefficients.taught.tolist()
    ends = [found.evidence.coefficient_ends.get(f"{part}.{each.name}") for each in features]
    bounded = any(ends)
    table = Grid.of(
        Column("name", True, folds=False), "value", *["90 % interval"] * bounded,
        Column("unit", True), Column("note", True), caption=title,
    )  # fmt: skip
    for feature, each, known in zip(features, ends, taught, strict=True):
        name, unit = feature.name, feature.unit
        is_time = unit.split("/")[0] == "s"
        scale = MICROSECOND if is_time else 1.0
        shown = f"u{unit}" if is_time else multiplier if unit == "1" else unit
        between = [_between(each, scale)] if bounded else []
        note = "" if known else "prior only"
        table.add(name, f"{values[name] / scale:.3f}", *between, shown, note)
    return table


def _between(ends: tuple[float, float] | None, scale: float) -> str:
    return f"{ends[0] / scale:.3f} to {ends[1] / scale:.3f}" if ends and ends[1] else "-"


def _step_table(steps: Sequence[StepTime]) -> Grid:
    """Return the table of step times by batch, in milliseconds, with tokens per second."""
    bounded = any(step.ends for step in steps)
    drafted = any(step.per_token is not None for step in steps)
    encoded = any(step.encoder for step in steps)
    table = Grid.of(
        Column("batch (@ context)", True), "ms", *["90 % interval"] * bounded,
        *["of it encoder"] * encoded, *["per token"] * drafted, "tokens/s",
    )  # fmt: skip
    for step in steps:
        cells = [step.batch, _ms(step.seconds)]
        if bounded:
            cells.append(" to ".join(_ms(end, 3) for end in step.ends or ()))
        if encoded:
            cells.append(_ms(step.encoder) if step.encoder else "-")
        if drafted:
            cells.append("-" if step.per_token is None else _ms(step.per_token))
        table.add(*cells, f"{step.tokens / step.seconds:,.0f}" if step.seconds else "-")
    return table


def _ms(seconds: float, digits: int = 4) -> str:
    return number(seconds * 1e3, digits)
