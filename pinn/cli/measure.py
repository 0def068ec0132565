"""``pinn measure``."""

import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from pinn.cli.options import Checkpoint, Gpu, engine_flags, output
from pinn.common.files import find_checkpoint, given_path
from pinn.engines.recipe import release
from pinn.errors import PinnError
from pinn.specs import model_names, serving, speculation
from pinn.specs.gpu import find_gpu, load_gpu


@dataclass(frozen=True, kw_only=True)
class MeasureRequest:
    """What is measured, for how long and with what.

    Attributes:
        model: Folder with a config.json, or a name that vLLM knows.
        out: Folder for the table of steps.
        minutes: Of measuring, once the engine has started.
        load: Closed loop that is asked for, as CLIENTSxPROMPTxOUTPUT; may be given again. [default:
            1, 16, 64 and 256 clients of 1000x200]
        script: Write the program for another machine, and run nothing.
        python: Interpreter that has the engine.
        serve: Also load a server on this machine, before the steps.
        port: Of that server; 0 for a free one.
        force: Measure on a card that is in use, or a model that should not fit.
    """

    model: str
    out: Annotated[Path, output(names=("--out", "-o"))] = Path("steps")
    gpu: Gpu = None
    minutes: Annotated[float, typer.Option(min=0.1)] = 10.0
    load: list[str] | None = None
    script: Annotated[Path | None, output(".py")] = None
    python: Annotated[str, typer.Option(show_default="that of pinn")] = sys.executable
    serve: bool = False
    port: Annotated[int, typer.Option(min=0, max=65535)] = 0
    force: bool = False
    checkpoint: Checkpoint = None


@engine_flags(serving.ServingSpec)
def measure(
    asked: MeasureRequest,
    more: Annotated[list[str] | None, typer.Argument(metavar="FLAGS")] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Measure whole steps of vLLM on this machine's GPU.

    The engine runs in the program's own process on weights of noise, and its steps are timed: a
    short list of batches first, then whichever narrows the asked loads' intervals most for its
    time. The program is one file that needs the engine alone: --script writes it for a machine
    without pinn, whose folder of steps is then calibrated on anywhere.

    Examples:
      pinn measure --model meta-llama/Llama-3.1-8B --gpu H100 --out steps

      pinn measure --model Qwen/Qwen3-32B --gpu H100 -tp 2
        --load 32x4000x300 --script measure.py

      pinn calibrate --steps steps -o server.json

    Options:
        more: After --: flags of vLLM that pinn does not know.
    """
    from pinn.calibration.measuring import measuring_script

    # What is mistyped is said before a machine with a GPU is looked for.
    if asked.gpu is not None:
        load_gpu(asked.gpu)
    find_checkpoint(asked.checkpoint)
    _check(flags)
    model = _full_name(asked.model)
    arguments = ["--model", model, *engine_arguments(flags), *(more or [])]
    if asked.gpu is not None:
        arguments += ["--gpu", asked.gpu]
    order = _design(asked, model, flags)
    own = ["--minutes", f"{asked.minutes:g}", *(["--serve"] if asked.serve else []),
           *(["--port", str(asked.port)] if asked.port else []),
           *(["--force"] if asked.force else [])]  # fmt: skip
    if asked.script is not None:
        text = measuring_script([*arguments, *own], order)
        asked.script.write_text(text, encoding="utf-8")
        typer.echo(
            f"wrote {asked.script}: run it with the engine's python, then calibrate on its --out"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "measure.py"
        program.write_text(measuring_script(arguments, order), encoding="utf-8")
        code = _run([asked.python, str(program), "--out", str(asked.out), *own])
    if code:
        raise typer.Exit(code)


def _check(flags: dict[str, Any]) -> None:
    """Refuse what is not measured.

    Raises:
        PinnError: If another engine, a release before those that are known, ranks of data
            parallelism or drafts are asked for.
    """
    from pinn.measurements.program.engine import OLDEST

    asked = serving.ServingSpec(**{k: v for k, v in flags.items() if k != "precision"})
    if asked.engine != serving.VLLM:
        raise PinnError(
            f"only vLLM's steps are measured, not those of {asked.engine}, whose scheduler runs in "
            "a process of its own: give files of its load generator to pinn calibrate --benchmarks"
        )
    oldest = ".".join(map(str, OLDEST))
    if asked.engine_version and release(asked.engine_version) < OLDEST:
        raise PinnError(
            f"vLLM {asked.engine_version} cannot be measured, only {oldest} and later: leave "
            "--engine-version out for the release that is installed"
        )
    if asked.data_parallel_size > 1 or asked.speculative_config != speculation.NONE:
        raise PinnError(
            "steps of several data-parallel ranks and of speculation are not measured: leave "
            "--data-parallel-size and --speculative-config out"
        )


def _full_name(model: str) -> str:
    """What vLLM calls a model: the full name of one that the catalog has by a short one."""
    known = "/" in model or given_path(model).exists()
    found = None if known else model_names.find_in_catalog(model)
    return found[0] if found else model


def engine_arguments(flags: dict[str, Any]) -> list[str]:
    """Flags as vLLM takes them.

    Raises:
        PinnError: If weights would have to be of a format that vLLM makes of none.
    """
    from pinn.planning.commands import ON_THE_FLY, vllm_words

    precision = flags.get("precision")
    if precision not in (None, *ON_THE_FLY):
        raise PinnError(
            f"vLLM does not make {precision} of a checkpoint at start, only "
            f"{', '.join(ON_THE_FLY)}: give the path of a config.json whose weights are in that "
            "format"
        )
    return vllm_words(flags)


def _design(request: MeasureRequest, model: str, flags: dict[str, Any]) -> list[tuple[str, float]]:
    """Batches in order with their worth; none, and a note why, where pinn does not know enough.

    Raises:
        PinnError: If the model does not fit, unless forced.
    """
    from pinn.calibration.measuring import USUAL_LOADS, AskedLoad, design
    from pinn.calibration.prior import Start
    from pinn.measurements.program.table import cards
    from pinn.measurements.traces.trace_tables import Target
    from pinn.simulator.memory import memory_fit

    asked = [AskedLoad.read(text) for text in request.load or []] or list(USUAL_LOADS)
    card = request.gpu or next((c["name"] for c in cards() if find_gpu(c["name"])), None)
    if card is None:
        typer.echo("batches come in a usual order, since the GPU is not known: --gpu names it")
        return []
    start = Start(None, None, request.checkpoint)
    try:
        deployment = Target.of(model, card, flags).deployment()
        fit = memory_fit(deployment)
        if fit.fits:
            prior = start.prior(deployment, start.coefficients(deployment))
            found = design(deployment, prior, request.minutes, asked)
    except PinnError as error:
        typer.echo(f"batches come in a usual order: {error}")
        return []
    if not fit.fits:
        if not request.force:
            raise PinnError(f"{fit.reason} (--force measures all the same)")
        typer.echo(f"no design, so batches come in a usual order: {fit.reason}")
        return []
    for note in start.notes:
        typer.echo(note)
    return [(str(batch), worth) for batch, worth in found]


def _run(command: list[str]) -> int:
    """Run the program to its end; SIGINT and SIGTERM are its own to deal with."""
    try:
        program = subprocess.Popen(command)
    except OSError as error:
        raise PinnError(f"{command[0]} cannot be run: {error.strerror or error}") from error
    old = {
        number: signal.signal(number, lambda got, _: program.send_signal(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        return program.wait()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
