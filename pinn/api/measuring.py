"""Measurements of a server's engine steps, and programs that make such measurements."""

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinn.api.arguments import read_request, with_arguments
from pinn.api.requests import MeasureRequest
from pinn.calibration.measuring import USUAL_LOADS, AskedLoad, design, measuring_script
from pinn.calibration.prior import Start
from pinn.common.files import find_checkpoint
from pinn.common.workers import on_signals
from pinn.engines.recipe import release
from pinn.errors import PinnError
from pinn.measurements.program.engine import OLDEST
from pinn.measurements.program.table import cards
from pinn.measurements.traces.trace_tables import Target
from pinn.memory.kv_cache import memory_fit
from pinn.planning.commands import ON_THE_FLY, vllm_words
from pinn.specs import model_names, serving, speculation
from pinn.specs.gpu import find_gpu, load_gpu
from pinn.specs.quantization_block import quantization_words
from pinn.specs.serving import ServingSpec


@dataclass(frozen=True)
class MeasuringProgram:
    """Measuring program: a single file that needs only the engine and its Python interpreter.

    Attributes:
        arguments: Arguments with which the program starts the engine.
        order: Pairs of batch and information gain, in measuring order; empty for the default order.
        notes: Notes for the user about the order of the batches.
    """

    arguments: tuple[str, ...]
    order: tuple[tuple[str, float], ...]
    notes: tuple[str, ...]

    def text(self, more: Sequence[str] = ()) -> str:
        """Return the source text of the program.

        Args:
            more: Additional arguments to store in the program.
        """
        return measuring_script([*self.arguments, *more], self.order)


@dataclass(frozen=True)
class Measured:
    """Measured steps, or the program that measures them.

    Attributes:
        path: Folder of the table of steps, for ``pinn.calibrate(steps=...)``; or path of the
            program.
        notes: Notes for the user about the order of the batches.
        is_program: Whether only the program was written.
        exit_status: Exit status of the program; 0 if all steps were measured.
    """

    path: Path
    notes: tuple[str, ...]
    is_program: bool = False
    exit_status: int = 0

    def __str__(self) -> str:
        """Return the text that ``pinn measure`` prints when it finishes."""
        last = (
            f"wrote {self.path}: run it on the GPU machine with the Python interpreter of vLLM, "
            f"then give its output folder (--out) to 'pinn calibrate --steps'"
        )
        return "\n".join([*self.notes, *[last] * self.is_program])


@with_arguments(ServingSpec, request=MeasureRequest)
def measure(
    model: str | Path,
    *,
    more: Sequence[str] = (),
    say: Callable[[str], object] = lambda _: None,
    **given: object,
) -> Measured:
    """Measure engine steps of vLLM on this machine's GPU, as ``pinn measure`` does.

    Args:
        model: Folder with a config.json, or a name that vLLM knows.
        more: vLLM flags that pinn does not know, as command-line arguments.
        say: Function to call with each note before the program starts.
        **given: Keyword arguments listed below, and flags of the server.

    Raises:
        PinnError: If such a deployment cannot be measured, a flag is mistyped, the model does not
            fit the GPU, or the Python interpreter cannot be run.
    """
    declared = {"model": model, "more": more, "say": say}
    wanted, flags = read_request(MeasureRequest, given, ServingSpec, **declared)
    if wanted.serve and any(" serve " in word or "launch_server" in word for word in more):
        raise PinnError(
            "--serve of 'pinn measure' is a switch and takes no launch command: "
            "give --model and the flags of the server as options"
        )
    found = measuring_program(wanted, flags, more)
    for note in found.notes:
        say(note)
    own = ["--minutes", f"{wanted.minutes:g}", *["--serve"] * wanted.serve]
    own += [*(["--port", str(wanted.port)] if wanted.port else []), *["--force"] * wanted.force]
    if wanted.script is not None:
        wanted.script.write_text(found.text(own), encoding="utf-8")
        return Measured(wanted.script, found.notes, is_program=True)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "measure.py"
        program.write_text(found.text(), encoding="utf-8")
        status = _run([wanted.python, str(program), "--out", str(wanted.out), *own])
    return Measured(wanted.out, found.notes, exit_status=status)


def _run(command: list[str]) -> int:
    """Run the measuring program, which handles SIGINT and SIGTERM, and return its exit status."""
    try:
        program = subprocess.Popen(command)
    except OSError as error:
        raise PinnError(
            f"{command[0]} cannot be run ({error.strerror or error}): give the path of a Python "
            "interpreter with vLLM"
        ) from error
    with on_signals(lambda number, _: program.send_signal(number)):
        return program.wait()


def measuring_program(
    wanted: MeasureRequest, flags: Mapping[str, object], words: Sequence[str] = ()
) -> MeasuringProgram:
    """Choose batches to time on a server, and return the program that times them.

    Args:
        wanted: Settings of the measurement, such as its duration.
        flags: Flags of the server, and ``precision``.
        words: Additional vLLM arguments.

    Raises:
        PinnError: If the engine cannot be measured, a flag is mistyped, or the model does not fit
            the GPU and ``force`` is not set.
    """
    # Report mistyped flags before looking for a GPU.
    if wanted.gpu is not None:
        load_gpu(wanted.gpu)
    find_checkpoint(wanted.checkpoint)
    _check(flags)
    model = model_names.repository(wanted.model)
    arguments = ["--model", model, *engine_arguments(flags), *words]
    if wanted.gpu is not None:
        arguments += ["--gpu", wanted.gpu]
    notes = list[str]()
    order = _design(wanted, model, flags, notes)
    return MeasuringProgram(tuple(arguments), tuple(order), tuple(notes))


def _check(flags: Mapping[str, Any]) -> None:
    """Raise an error for flags with which the measuring program cannot run.

    Raises:
        PinnError: If the flags request another engine, an older release, data parallelism or
            speculative decoding.
    """
    asked = serving.ServingSpec(**{k: v for k, v in flags.items() if k != "precision"})
    if asked.engine != serving.VLLM:
        raise PinnError(
            f"steps of {asked.engine} cannot be measured, because its scheduler runs in a process "
            "of its own: benchmark the server, and give the result files to 'pinn calibrate "
            "--benchmarks'"
        )
    oldest = ".".join(map(str, OLDEST))
    if asked.engine_version and release(asked.engine_version) < OLDEST:
        raise PinnError(
            f"vLLM {asked.engine_version} cannot be measured, only {oldest} and later: omit "
            f"--engine-version to measure the installed release"
        )
    if asked.data_parallel_size > 1 or asked.speculative_config != speculation.NONE:
        raise PinnError(
            "steps with several data-parallel ranks or with speculative decoding "
            "cannot be measured: omit --data-parallel-size and --speculative-config"
        )


def engine_arguments(flags: Mapping[str, Any]) -> list[str]:
    """Return engine flags as vLLM command-line arguments.

    Raises:
        PinnError: If vLLM cannot convert weights to the requested format.
    """
    precision = flags.get("precision")
    if precision not in (None, *ON_THE_FLY, *quantization_words("flag_methods")):
        raise PinnError(
            f"--quantization is {precision}, but at start-up vLLM quantizes weights only to "
            f"{', '.join(ON_THE_FLY)}: give the path of a config.json of weights in {precision}"
        )
    return vllm_words(dict(flags))


def _design(
    wanted: MeasureRequest, model: str, flags: Mapping[str, Any], notes: list[str]
) -> list[tuple[str, float]]:
    """Return batches to time, in measuring order, each with its information gain.

    The list is empty if batches cannot be chosen, for example if the GPU is unknown; a note then
    states the reason.

    Raises:
        PinnError: If the model does not fit the GPU and ``force`` is not set.
    """
    asked = [AskedLoad.read(text) for text in wanted.load or ()] or list(USUAL_LOADS)
    names = (str(card["name"]) for card in cards())
    card = wanted.gpu or next(filter(find_gpu, names), None)
    if card is None:
        notes.append(
            "batches are measured in the default order, because the GPU is unknown: give --gpu"
        )
        return []
    start = Start(None, None, wanted.checkpoint)
    try:
        deployment = Target.of(model, card, flags).deployment()
        fit = memory_fit(deployment)
        if fit.fits:
            prior = start.prior(deployment, start.coefficients(deployment))
            found = design(deployment, prior, wanted.minutes, asked)
    except PinnError as error:
        notes.append(f"batches are measured in the default order: {error}")
        return []
    if not fit.fits:
        if not wanted.force:
            raise PinnError(f"{fit.reason}, or measure anyway with --force")
        notes.append(f"batches are measured in the default order: {fit.reason}")
        return []
    notes += start.notes
    return [(str(batch), worth) for batch, worth in found]
