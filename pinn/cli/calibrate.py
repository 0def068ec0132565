"""Command ``pinn calibrate``: a fit of predictions to measurements of a server."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.api.requests import CalibrationRequest
from pinn.cli.options import Details, engine_flags, output
from pinn.cli.outputs import PARTLY_READ
from pinn.common.screen import say
from pinn.engines.engine_spec import EngineSpec
from pinn.measurements.benchmarks.reading import GivenLoad
from pinn.specs.serving import ServingSpec


@engine_flags(ServingSpec, EngineSpec, GivenLoad, serves=True)
def calibrate(
    asked: CalibrationRequest,
    more: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None,
    out: Annotated[Path, output(".json", names=("--out", "-o"))] = Path("coefficients.json"),
    details: Details = False,
    *,
    flags: dict[str, object],
) -> None:
    """Calibrate the predictions to measurements of your own server.

    Measurements are benchmark results, traces, or measured whole steps. The network's coefficients
    and their intervals are the prior. The fit changes eight calibration factors (fixed time of a
    step, memory traffic, arithmetic, attention, ...) and, to a lesser degree, single coefficients.
    A coefficient that the measurements do not constrain keeps its value and interval.

    Benchmark runs of an overloaded server are excluded and named; --force includes them. The result
    is evaluated on held-out trace time, loads or batches. If the held-out error does not
    improve, nothing is written and the exit status is 1. The exit status is 3 if benchmark files,
    or lines of them, could not be read. Metrics whose held-out error grows while others improve are
    excluded from the fit. A metric whose median APE stays above 25 % is reported with likely
    causes, and the file is then written only with --accept.

    Examples:
      pinn calibrate --benchmarks results/*.json --model Llama-3.1-8B --gpu H100
        --max-num-seqs 256 -o server.json

      pinn calibrate --benchmarks results/*.json --gpu H100
        --serve 'vllm serve Qwen/Qwen3-32B -tp 2' -o server.json

      pinn ingest vllm traces.json -o run1 --model Llama-3.1-8B --gpu H100

      pinn calibrate --observations run1 --append server.json -o server.json

      pinn simulate --coefficients server.json --workload profile.yaml

    Options:
        out: Coefficient file to write, as JSON.
    """
    from pinn.api import calibration

    files = [*(asked.benchmarks or []), *(more or [])]
    found = calibration.calibrate(**(vars(asked) | {"benchmarks": files} | flags))
    found.print_report(details)
    if found.refusal is not None:
        say(f"nothing written: {found.refusal}")
        raise typer.Exit(1)  # stops a script whose next command needs the new file
    found.save(out)
    typer.echo(f"wrote {out}")
    if found.left_out:
        raise typer.Exit(PARTLY_READ)
