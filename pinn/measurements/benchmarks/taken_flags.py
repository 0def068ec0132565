"""Server flags taken from benchmark files because the user did not specify them."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath

from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun
from pinn.measurements.traces.trace_tables import Target
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec

#: First words of the note that lists server flags taken from a benchmark file.
TAKEN = "taken from"

#: Flags that are not compared, because they select the engine and release that determine the
#: defaults of all other flags.
_SAME = {"engine", "engine_version"}
#: Attribute of the resolved engine configuration with a flag's effective value, which is known even
#: if the flag is not given.
_RESOLVED = {"max_num_batched_tokens": "token_budget", "max_num_seqs": "max_requests"}
_OPTIONS = {flag.name: flag.option for flag in flags_of(ServingSpec)}


def taken_lines(runs: Sequence[BenchmarkRun], target: Target, given: Collection[str]) -> list[str]:
    """Return a line per file whose flags change the server's configuration.

    A flag is listed if its value differs from the value that would result from the user's flags and
    the engine's defaults alone.

    Args:
        runs: Runs of one server.
        target: Server, with the flags of the files.
        given: Names of the flags that the user specified.
    """
    source: dict[str, str] = {}
    for run in runs:
        file = run.server.source or PurePath(run.name).name
        for name in set(run.server.all_flags) - set(given) - _SAME:
            source.setdefault(name, file)
    lines = []
    without = _without(target, source)
    for file in dict.fromkeys(source.values()):
        mine = sorted(name for name, its in source.items() if its == file)
        found = [text for name in mine if (text := _difference(name, target, without))]
        if found:
            lines.append(f"{TAKEN} {file}: {', '.join(found)}")
    return lines


def _without(target: Target, names: Collection[str]) -> Target:
    """Return a server with the engine's defaults for the given flags."""
    default = vars(ServingSpec())
    kept = {name: default[name] for name in names if name in default}
    precision = None if "precision" in names else target.precision
    return replace(target, serving=replace(target.serving, **kept), precision=precision)


def _difference(name: str, target: Target, without: Target) -> str:
    """Return a flag's values on two servers as a string; empty if they are equal."""
    if name == "precision":
        other = "the checkpoint's format" if target.precision else ""
        return f"--quantization {target.precision} (your flags imply {other})" if other else ""
    value, implied = _value(name, target), _value(name, without)
    if value == implied:
        return ""
    shown = f"{implied:,}" if type(implied) is int else implied
    shown = "the engine's default" if implied is None else shown
    return f"{_OPTIONS[name]} {value} (your flags imply {shown})"


def _value(name: str, target: Target) -> object:
    """Return a flag's resolved value; the given value if the flag is not resolved."""
    if name in _RESOLVED:
        with suppress(PinnError):
            return getattr(target.deployment().recipe, _RESOLVED[name])
    return getattr(target.serving, name)
