"""A launch command in place of flags: what it sets, and what of it is not used."""

from collections.abc import Collection, Mapping

from pinn.common.documents import comma_separated
from pinn.engines import launch_line
from pinn.errors import PinnError, printable
from pinn.specs.gpu import GpuSpec, load_gpu
from pinn.specs.serving import VLLM

#: Keys of a configuration beside flags.
_KEYS = frozenset({"model", "precision", "force"})


def launched(
    command: str | None,
    words: list[str],
    given: Mapping[str, object],
    gpu: str | None,
    fields: Collection[str],
) -> tuple[dict[str, object], list[str]]:
    """What a command, and further words of an engine, set.

    Args:
        command: As of ``--serve``; None for none.
        words: Flags of the engine that are no options here.
        given: Flags beside them; ``engine`` and ``engine_version`` say whose words they are, where
            there is no command or its image names none.
        gpu: Names of GPUs with commas between them; None where none is given.
        fields: Flags that have a meaning where this is asked.

    Returns:
        The configuration, and lines that say what was taken and what was not.

    Raises:
        PinnError: As :func:`read_launch`, or if the command starts another engine than is given.
    """
    release = str(given.get("engine_version") or "")
    asked = str(given.get("engine") or "").split(",")[0]
    if command is None:
        found = launch_line.Launch(asked or VLLM, release)
    else:
        found = launch_line.read_launch(command, _strictest(gpu), release)
        if asked and asked != found.engine:
            raise PinnError(f"--serve starts {found.engine}, not --engine {asked}: leave one out")
    more = launch_line.read_arguments(found.engine, words, found.release or release)
    found.configuration |= more.configuration
    for name in ("taken", "no_effect", "unmodelled"):
        getattr(found, name).extend(getattr(more, name))
    known = {k: v for k, v in found.configuration.items() if k in _KEYS or k in fields}
    idle = [printable(f"{k} {v}", 500) for k, v in found.configuration.items() if k not in known]
    lines = found.lines
    return known, lines + (
        [f"decides nothing that is asked here: {', '.join(idle)}"] if idle else []
    )


def _strictest(gpu: str | None) -> GpuSpec | None:
    """The GPU that takes least of what a command asks for: one that is no 10.x, if there is one."""
    gpus = map(load_gpu, comma_separated(gpu or ""))
    return min(gpus, key=lambda g: 10 <= g.compute_capability < 11, default=None)
