"""``pinn breakdown``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pinn.api import requests
from pinn.cli import options
from pinn.cli.outputs import PICTURES, write_json
from pinn.common.files import find_checkpoint, find_kernels
from pinn.engines.configurations import canonical, make_deployment
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    from pinn.training.teacher import Teacher

_EXAMPLES = ("64 decode @ 2000", "1 prefill 2048 @ 0 + 64 decode @ 2000")


@dataclass(frozen=True, kw_only=True)
class BreakdownRequest:
    """Steps of a configuration, and what they are broken down with.

    Attributes:
        batch: Step to break down, such as '64 decode @ 2000' (64 requests after 2000 tokens each)
            or '1 prefill 512 @ 0 + 16 decode @ 600'. Repeatable.
        explain: Show what parts hold, the composed step, and its kernels, too.
        plot: Also draw it: .png, .svg or .pdf.
        kernels: Folder of fitted kernel surrogates. [default: kernels/all beside the checkpoint,
            else checkpoints/kernels/all]
    """

    model: str | None = None
    gpu: str | None = None
    batch: list[str] | None = None
    explain: bool = False
    plot: Annotated[Path | None, options.output(*PICTURES)] = None
    checkpoint: Path | None = None
    kernels: Path | None = None


@options.engine_flags(ServingSpec, deploys=True)
def breakdown(
    asked: BreakdownRequest, json_path: options.JsonPath = None, *, flags: dict[str, Any]
) -> None:
    """Where the time of an engine step goes, and the measured kernels behind it.

    The network's breakdown: beta x feature, by part. With --explain that of a step composed of
    measured kernels and overheads stands beside it. Then come the kernels: how often each runs, how
    long, and how far its sizes are off from the nearest measured one (x 1.00 is that very kernel).

    Examples:
      pinn breakdown --model Qwen/Qwen3-30B-A3B --gpu H200 -tp 2

      pinn breakdown --model Llama-3.1-70B --gpu B200 --tensor-parallel-size 4
        --batch '256 decode @ 4000' --plot step.png
    """
    from pinn.cli.breakdown_report import draw, make_report, print_report
    from pinn.surrogate.surrogate import Surrogate
    from pinn.training.breakdown import breakdown as breakdown_of

    path = find_checkpoint(asked.checkpoint)
    surrogate = Surrogate.load(path)
    teacher, sources = _teacher(asked.kernels, path, surrogate.checkpoint.metadata)
    deployment = make_deployment(canonical(requests.named(asked.model, asked.gpu) | flags))
    beta = surrogate.coefficients([deployment]).beta[0]
    breakdowns = [
        breakdown_of(deployment, text, beta, teacher) for text in asked.batch or _EXAMPLES
    ]
    report = make_report(deployment, breakdowns, {"network": _shown(path), **sources})
    write_json(report, json_path)
    if asked.plot is not None:
        draw(report, asked.plot)
    print_report(report, asked.explain)


def _teacher(
    folder: Path | None, checkpoint: Path, metadata: dict[str, Any]
) -> tuple[Teacher | None, dict[str, str]]:
    """Kernels and scalars, and in words where they come from or why they are missing."""
    from pinn.kernels.surrogates import KernelSurrogates
    from pinn.training.teacher import Teacher, prior_scalars, saved_scalars

    found = find_kernels(folder, checkpoint)
    if found is None:
        missing = (
            "missing, so there is no composed breakdown: fit surrogates with 'python train.py "
            "kernels=on' and name their folder with --kernels"
        )
        return None, {"kernels": missing}
    surrogates = KernelSurrogates.load(found)
    left_out = ", ".join(chain(*surrogates.metadata.get("excluded", {}).values()))
    without = f", fitted without {left_out}" if left_out else ""
    saved = metadata.get("scalars")
    scalars = saved_scalars(saved) if saved else prior_scalars()
    return Teacher(surrogates, scalars), {
        "kernels": f"{_shown(found)}{without}",
        "overheads": "as the checkpoint learned them"
        if saved
        else "their priors, as the checkpoint was trained without kernels",
    }


def _shown(path: Path) -> str:
    """The path from the working directory, where it lies below that."""
    whole, here = path.absolute(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else path)
