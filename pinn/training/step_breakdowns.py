"""Breakdowns of a deployment's step times by part, as JSON, tables and figures."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from pinn.common import JsonObject
from pinn.common.screen import WIDEST, Column, Grid, page, printed, say
from pinn.engines.assumptions import assumption_lines
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import unread_notice
from pinn.kernels.evidence import KernelUse
from pinn.specs.batch import parse_batch
from pinn.surrogate.batch_marks import batch_marks
from pinn.training.breakdown import DRAFTING, ENCODING, PART_OF_FEATURE, PARTS, Breakdown
from pinn.units import MICROSECOND

#: A kernel's time counts as measured if the ratio between its sizes and those of the nearest
#: measured kernel is at most this.
NEAR = 1.1
#: Maximum number of steps shown side by side in a table.
_ABREAST = 2
_MORE = "More: --explain (contents of each part; measured kernels), --plot, --json FILE."
#: Default kernel sizes, which are not printed: no attention window, gated FFN (3 matrices), no
#: parallelism.
_USUAL = {"window": 0.0, "matrices": 3.0, "tensor_parallel": 1.0, "expert_parallel": 1.0}


@dataclass(frozen=True, repr=False)
class StepBreakdowns:
    """Breakdowns of a deployment's step times by part.

    Attributes:
        deployment: Model, GPU and engine configuration.
        steps: Breakdown of each batch's step.
        sources: Descriptions of the sources of the printed times, by network, kernels, overheads
            and vision encoder.
    """

    deployment: Deployment
    steps: tuple[Breakdown, ...]
    sources: Mapping[str, str]

    @cached_property
    def marks(self) -> list[list[str]]:
        """Return, for each step, the limits of engine and training data that its batch exceeds."""
        return batch_marks([parse_batch(step.batch) for step in self.steps], self.deployment)

    def to_json(self) -> JsonObject:
        """Return the document of ``pinn breakdown --json``; times are in microseconds.

        Keys: ``model``, ``asked_as``, ``gpu``, ``serving``, optional ``notices``, ``sources``, and
        ``steps``, a list of ``batch``, ``floor_us``, ``network_us``, ``composed_us``, ``parts``
        (``part``, ``network_us``, ``composed_us``), ``features`` (``feature``, ``part``,
        ``network_us``), ``kernels`` (``operator``, ``format``, ``sizes``, ``runs``, ``us_each``,
        ``composed_us``, ``nearest``: the closest measured kernel, ``stretch``: the maximum ratio
        between a size and that of the nearest kernel, 1 if the kernel itself was measured) and
        ``marks`` (limits exceeded). ``composed_us`` is the time according to kernels and overheads,
        null without kernel surrogates.
        """
        serving = self.deployment.serving
        notice = unread_notice(serving.engine, serving.engine_version)
        pairs = zip(self.steps, self.marks, strict=True)
        return {
            "model": self.deployment.model.name,
            "asked_as": self.deployment.model.title,
            "gpu": self.deployment.gpu.name,
            "serving": asdict(serving),
            **({} if notice is None else {"notices": [notice]}),
            "sources": dict(self.sources),
            "steps": [_step_json(step) | {"marks": marks} for step, marks in pairs],
        }

    def show(self, explain: bool = False) -> None:
        """Print the time of each step by part, and the share of kernel time that was measured.

        Args:
            explain: Whether to also print times according to kernels, the content of each part, and
                the kernels.
        """
        serving = asdict(self.deployment.serving)
        flags = ", ".join(f"{k} {v}" for k, v in serving.items() if _worth_showing(k, v))
        say(f"{self.deployment.model.title} on {self.deployment.gpu.name}: {flags}")
        for line in assumption_lines(self.deployment):
            say(line)
        without_kernels = any(step.composed is None for step in self.steps)
        if explain or "encoder" in self.sources or without_kernels:
            for what, source in self.sources.items():
                say(f"{what}: {source}")
        if explain:
            self._show_whole()
            return
        for table in self._tables():
            say("")
            page().print(table)
        say("")
        for index in range(len(self.steps)):
            self._show_marks(index)
        for step in self.steps:
            if step.kernels:
                say(f"{step.batch}: {_rests_on(step.kernels, self.deployment.gpu.name)}")
        say(_MORE)

    def _show_whole(self) -> None:
        for index, step in enumerate(self.steps):
            say("")
            page(WIDEST).print(_parts_table(step))
            self._show_marks(index)
            if step.kernels:
                say("")
                page(WIDEST).print(_kernels_table(step.kernels))
                say(_rests_on(step.kernels, self.deployment.gpu.name))

    def _show_marks(self, index: int) -> None:
        if self.marks[index]:
            say(f"{self.steps[index].batch}: {'; '.join(self.marks[index])}.")

    def _tables(self) -> list[Grid]:
        firsts = range(0, len(self.steps), _ABREAST)
        return [_steps_table(self.steps[first : first + _ABREAST]) for first in firsts]

    def draw(self, path: Path) -> None:
        """Plot step times by part, and the kernels, in a file whose suffix selects the format."""
        from pinn.training.breakdown_picture import draw

        draw(self.deployment, self.steps, path)

    def __repr__(self) -> str:
        """Return the text that ``pinn breakdown`` prints."""
        return printed(self.show).rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the tables of step times as HTML, for display in a notebook."""
        title = html.escape(f"{self.deployment.model.title} on {self.deployment.gpu.name}")
        return f"<div><p>{title}</p>{''.join(table.html() for table in self._tables())}</div>"


def _step_json(found: Breakdown) -> JsonObject:
    composed = found.composed or {}
    return {
        "batch": found.batch,
        "floor_us": found.floor / MICROSECOND,
        "network_us": sum(found.network.values()) / MICROSECOND,
        "composed_us": sum(composed.values()) / MICROSECOND if composed else None,
        "parts": [
            {
                "part": part,
                "network_us": seconds / MICROSECOND,
                "composed_us": composed[part] / MICROSECOND if composed else None,
            }
            for part, seconds in found.network.items()
        ],
        "features": [
            {"feature": name, "part": _part_of(name), "network_us": seconds / MICROSECOND}
            for name, seconds in found.features.items()
        ],
        "kernels": [_kernel_json(use) for use in found.kernels],
    }


def _part_of(feature: str) -> str:
    part = PART_OF_FEATURE[feature]
    return part if part in PARTS else "weights and matmul_arithmetic"


def _kernel_json(use: KernelUse) -> JsonObject:
    near = use.nearest
    return {
        "operator": use.operator,
        "format": use.precision,
        "sizes": dict(use.sizes),
        "runs": use.count,
        "us_each": use.seconds / MICROSECOND,
        "composed_us": use.total_seconds / MICROSECOND,
        "nearest": None
        if near is None
        else {"gpu": near.gpu, "format": near.precision, "sizes": dict(near.shape)},
        "stretch": stretch_of(use),
    }


def stretch_of(use: KernelUse) -> float | None:
    """Return the maximum ratio between the sizes of a kernel and its nearest measured kernel.

    The ratio is None if no measured kernel is known.
    """
    return None if use.nearest is None else math.exp(use.nearest.stretch)


def sizes_text(sizes: Mapping[str, float]) -> str:
    """Return a kernel's sizes as ``name value`` text; whole numbers have no decimals."""
    return " ".join(
        f"{name} {size:.0f}" if size == int(size) else f"{name} {size:.6g}"
        for name, size in sizes.items()
    )


def nearest_text(use: KernelUse) -> str:
    """Describe the nearest measured kernel: its GPU, and the sizes that differ."""
    near = use.nearest
    if near is None:
        return "not measured anywhere"
    differ = {k: v for k, v in near.shape.items() if v != use.sizes.get(k)}
    return f"{near.gpu} {near.precision}: {sizes_text(differ) or 'same shape'}"


def _worth_showing(name: str, value: object) -> bool:
    return name.endswith("parallel_size") or (name == "enable_expert_parallel" and bool(value))


def _steps_table(steps: Sequence[Breakdown]) -> Grid:
    """Return a table of steps side by side: time of each part, and the roofline lower bound."""
    headings = ((Column(f"{step.batch}: us", most=20), "%") for step in steps)
    names = dict.fromkeys(name for step in steps for name in step.network)
    rows = {name: [step.network.get(name) for step in steps] for name in names}
    totals = rows["step"] = [sum(step.network.values()) for step in steps]
    rows["roofline lower bound"] = [step.floor for step in steps]
    table = Grid.of("part of a step", *(each for pair in headings for each in pair))
    for name, values in rows.items():
        table.add(name, *_cells(values, totals))
    return table


def _parts_table(step: Breakdown) -> Grid:
    floor = step.floor / MICROSECOND
    title = f"{step.batch}: time by part (roofline lower bound {floor:.0f} us)"
    holds = Column("contents", True)
    table = Grid.of("part", "network us", "%", "composed us", "%", holds, caption=title)
    texts = PARTS | DRAFTING | ENCODING | {"step": ""}
    composed = step.composed or {}
    totals = [sum(step.network.values()), sum(composed.values()) if composed else None]
    rows = [(part, [seconds, composed.get(part)]) for part, seconds in step.network.items()]
    for part, values in [*rows, ("step", totals)]:
        table.add(part, *_cells(values, totals), texts[part])
    return table


def _cells(values: Sequence[float | None], totals: Sequence[float | None]) -> Iterator[str]:
    """Yield two cells per time in seconds: microseconds, and percent of the column's total."""
    for value, total in zip(values, totals, strict=True):
        if value is None or total is None:
            yield from ("-", "-")
        else:
            yield from (f"{value / MICROSECOND:.0f}", f"{100 * value / total:.0f}")


def _kernels_table(kernels: Sequence[KernelUse]) -> Grid:
    nearest = Column("nearest measured", True)
    headings = ("kernel", "runs", "us each", "us", nearest, "size ratio")
    table = Grid.of(*headings, caption="kernels of the composed step")
    for use in kernels:
        stretch = stretch_of(use)
        telling = {k: v for k, v in use.sizes.items() if _USUAL.get(k) != v}
        table.add(
            f"{use.operator} {use.precision} {sizes_text(telling)}",
            f"{use.count:.0f}",
            f"{use.seconds / MICROSECOND:.1f}",
            f"{use.total_seconds / MICROSECOND:.0f}",
            nearest_text(use),
            "-" if stretch is None else f"x {stretch:.2f}",
        )
    return table


def _rests_on(kernels: Sequence[KernelUse], gpu: str) -> str:
    """Return a sentence about the share of the kernels' time that was measured."""
    total = sum(use.total_seconds for use in kernels)
    near = sum(use.total_seconds for use in kernels if _is_near(use, gpu))
    far = max(kernels, key=lambda use: stretch_of(use) or 0.0)
    text = (
        f"{100 * near / total:.0f} % of the kernel time is within {NEAR}x of sizes measured on "
        f"{gpu} in the same number format"
    )
    if (stretch := stretch_of(far)) is None:
        return f"{text}."
    return f"{text}; farthest: {far.operator}, {stretch:.2f}x."


def _is_near(use: KernelUse, gpu: str) -> bool:
    near = use.nearest
    if near is None or (near.gpu, near.precision) != (gpu, use.precision):
        return False
    return math.exp(near.stretch) <= NEAR
