"""Command line of the measuring program."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable

from pinn.measurements.program.batches import Limits, Wanted, own_order, read_batch, short_list
from pinn.measurements.program.engine import VllmEngine
from pinn.measurements.program.serving import VLLM, serve_and_load
from pinn.measurements.program.session import (
    ALL_MEASURED,
    ASKED_TO_STOP,
    FAR,
    STALLED,
    TIME_IS_OVER,
    Outcome,
    Session,
    measure_all,
)
from pinn.measurements.program.table import (
    STEPS_FILE,
    MeasuringError,
    Table,
    busy_card,
    machine_facts,
)

#: Values that ``pinn measure --script`` fills in: arguments to insert before those of the command
#: line, and the batches to measure, in order, with the information gain of each.
ARGUMENTS: list[str] = []
DESIGN: list[tuple[str, float]] = []


class _Asked:
    """Stop flag; a call returns whether the process has received SIGINT or SIGTERM."""

    def __init__(self) -> None:
        self._asked = False
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._old = {number: signal.signal(number, self._note) for number in numbers}

    def __call__(self) -> bool:
        return self._asked

    def waits(self) -> None:
        """Make subsequent signals only set the flag, which is checked before each step."""
        for number in self._old:
            signal.signal(number, self._note)

    def interrupts(self) -> None:
        """Make a signal interrupt the process immediately, for example while an engine starts."""
        for number in self._old:
            signal.signal(number, signal.default_int_handler)

    def restore(self) -> None:
        """Restore the process's previous signal handlers."""
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        self._asked = True


#: Function that starts an engine from flags of ``vllm serve``.
Start = Callable[[list[str]], VllmEngine]


def main(argv: list[str] | None = None, start: Start = VllmEngine) -> int:
    """Measure steps and print the result; return the exit status, 0 for a complete measurement.

    Args:
        argv: Command-line arguments; None for those of the process.
        start: Function that starts an engine from its flags.
    """
    given, flags = _arguments([*ARGUMENTS, *(sys.argv[1:] if argv is None else argv)])
    asked = _Asked()
    try:
        return _measure(given, flags, start, asked)
    except KeyboardInterrupt:
        return _fail("stopped before the engine was ready: no steps were measured")
    except MeasuringError as error:
        return _fail(str(error))
    finally:
        asked.restore()


def _measure(given: argparse.Namespace, flags: list[str], start: Start, asked: _Asked) -> int:
    facts = {"model": given.model, "gpu": given.gpu, "flags": flags, **machine_facts()}
    busy = busy_card(facts["cards"])
    if busy and not given.force:
        raise MeasuringError(
            f"{busy}: stop the processes that use it, or measure anyway with --force"
        )
    begun = time.time()
    try:
        table = Table(given.out, {"schema": "pinn measured steps 1", "begun": begun, **facts})
    except FileExistsError as error:
        held = f"{given.out} already has {STEPS_FILE}"
        raise MeasuringError(f"{held}: give another folder") from error
    except OSError as error:
        raise MeasuringError(_unwritten(given.out, error)) from error
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        if given.serve:
            _serve(given, flags, asked)
        if asked():
            raise MeasuringError("a signal stopped the program, so no steps were measured")
        asked.interrupts()
        engine = start(["--model", given.model, *flags])
        asked.waits()
        table.describe({"start_s": time.time() - begun, **engine.facts})
        if engine.facts.get("engine_is_newer_than_known"):
            _say(f"vLLM {engine.facts['engine_version']} is newer than the tested "
                "releases, but has all functions that the measurement needs")  # fmt: skip
        session = Session(engine, 60.0 * given.minutes, asked)
        found = measure_all(session, _wanted(engine.limits), table, _say)
        table.describe({"measured_s": 60.0 * given.minutes - session.left, **found._asdict()})
        engine.close()
    except OSError as error:
        raise MeasuringError(_unwritten(given.out, error)) from error
    finally:
        table.close()
    return _report(found, given.out)


def _unwritten(out: str, error: OSError) -> str:
    return f"{out} cannot be written ({error.strerror or error}): give another folder with --out"


def _wanted(limits: Limits) -> Iterable[Wanted]:
    """Return the batches to measure: a short list, then ``DESIGN``, then a default order.

    Some batches in ``DESIGN`` may not fit if the KV cache is smaller than predicted.
    """
    design = [read_batch(text) for text, _ in DESIGN]
    return dict.fromkeys([*short_list(limits), *design, *own_order(limits)])


def _serve(given: argparse.Namespace, flags: list[str], asked: _Asked) -> None:
    """Measure a server before starting an engine here, which may not free its GPU memory."""
    third = 20.0 * given.minutes
    try:
        files = serve_and_load(given.model, flags, given.out, third, _say, given.port, VLLM, asked)
        _say(f"serving: {len(files)} files in {os.path.join(given.out, 'serving')}")
    except (MeasuringError, OSError, ValueError, KeyError) as error:
        _say(f"no serving was measured: {error}")


def _report(found: Outcome, out: str) -> int:
    good = found.ended in (TIME_IS_OVER, ASKED_TO_STOP, ALL_MEASURED)
    _say(f"{found.ended}: measured {found.batches} batches, {found.known} of them with a median "
         f"step time precise to 1 %, in {found.steps} steps; dropped {found.cold} warm-up "
         f"steps")  # fmt: skip
    if found.steps and found.stalls > STALLED * found.steps:
        _say(f"the CPU delays steps: {found.stalls} of {found.steps} steps took more "
            f"than {FAR:g} times the median step time of their batch, the slowest "
            f"{found.worst:.1f} times")  # fmt: skip
    if not found.steps:
        return _fail("nothing was measured")
    _say(f"wrote {os.path.join(out, STEPS_FILE)}; next: pinn calibrate --steps {out}")
    return 0 if good else _fail(f"{found.ended}; earlier measurements are kept")


def _arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description="Measure step times of an engine on this machine.",
        epilog="All other flags are passed to the engine, as flags of 'vllm serve'.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", required=True, help="Folder with a config.json, or a Hugging Face name."
    )
    parser.add_argument("--gpu", default="", help="Name of the GPU for 'pinn calibrate'.")
    parser.add_argument("--out", default="steps", help="Folder to write.")
    parser.add_argument("--minutes", type=float, default=10.0, help="Of measuring.")
    parser.add_argument(
        "--serve", action="store_true", help="Also start a server and load it, before the steps."
    )
    parser.add_argument("--port", type=int, default=0, help="Of that server.")
    parser.add_argument("--force", action="store_true", help="Measure even if the GPU is in use.")
    given, flags = parser.parse_known_args(argv)
    if not any(flag.split("=")[0].replace("_", "-") == "--load-format" for flag in flags):
        flags += ["--load-format", "dummy"]
    return given, [flag for flag in flags if flag != "--"]


def _say(text: str) -> None:
    print(f"measure: {text}", flush=True)


def _fail(text: str) -> int:
    print(f"measure: error: {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
