"""``pinn measure``."""

import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from pinn.api.requests import MeasureRequest
from pinn.cli.options import engine_flags
from pinn.common.workers import on_signals
from pinn.errors import PinnError
from pinn.specs.serving import ServingSpec


@engine_flags(ServingSpec)
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
    from pinn.api.measuring import measuring_program

    if asked.serve and any(" serve " in word or "launch_server" in word for word in more or ()):
        raise PinnError(
            "measure's --serve takes no launch command: give --model and the flags of the server "
            "beside it"
        )
    found = measuring_program(asked, flags, more or ())
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
    with on_signals(lambda number, _: program.send_signal(number)):
        return program.wait()
