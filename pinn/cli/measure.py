"""``pinn measure``."""

import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pinn.cli.options import Checkpoint, Gpu, engine_flags, output
from pinn.errors import PinnError
from pinn.specs import serving


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
    flags: dict[str, object],
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
    from pinn.api.measuring import Wanted, measuring_program

    wanted = Wanted(
        asked.model, asked.gpu, asked.minutes, asked.load or (), asked.checkpoint, asked.force
    )
    found = measuring_program(wanted, flags, more or ())
    for note in found.notes:
        typer.echo(note)
    own = ["--minutes", f"{asked.minutes:g}", *(["--serve"] if asked.serve else []),
           *(["--port", str(asked.port)] if asked.port else []),
           *(["--force"] if asked.force else [])]  # fmt: skip
    if asked.script is not None:
        asked.script.write_text(found.text(own), encoding="utf-8")
        typer.echo(
            f"wrote {asked.script}: run it with the engine's python, then calibrate on its --out"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "measure.py"
        program.write_text(found.text(), encoding="utf-8")
        code = _run([asked.python, str(program), "--out", str(asked.out), *own])
    if code:
        raise typer.Exit(code)


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
