"""Programs that measure whole steps of a server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinn.api.requests import MeasureRequest
from pinn.calibration.measuring import USUAL_LOADS, AskedLoad, design, measuring_script
from pinn.calibration.prior import Start
from pinn.common.files import find_checkpoint, given_path
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


@dataclass(frozen=True)
class MeasuringProgram:
    """A program that measures; one file that needs the engine and its Python alone.

    Attributes:
        arguments: Arguments of the engine, which the program is given.
        order: Batches in order, each with its worth; empty for an order of its own.
        notes: What users should know of the order.
    """

    arguments: tuple[str, ...]
    order: tuple[tuple[str, float], ...]
    notes: tuple[str, ...]

    def text(self, more: Sequence[str] = ()) -> str:
        """Return the program.

        Args:
            more: Arguments that it has by itself.
        """
        return measuring_script([*self.arguments, *more], self.order)


def measuring_program(
    wanted: MeasureRequest, flags: Mapping[str, object], words: Sequence[str] = ()
) -> MeasuringProgram:
    """Choose batches for a server, and write the program that measures them.

    Args:
        wanted: What is measured, and for how long.
        flags: Flags of the server, and ``precision``.
        words: Further arguments of vLLM.

    Raises:
        PinnError: If it is not measured, is mistyped, or does not fit, unless forced.
    """
    # What is mistyped is said before a machine with a GPU is looked for.
    if wanted.gpu is not None:
        load_gpu(wanted.gpu)
    find_checkpoint(wanted.checkpoint)
    _check(flags)
    model = _full_name(wanted.model)
    arguments = ["--model", model, *engine_arguments(flags), *words]
    if wanted.gpu is not None:
        arguments += ["--gpu", wanted.gpu]
    notes = list[str]()
    order = _design(wanted, model, flags, notes)
    return MeasuringProgram(tuple(arguments), tuple(order), tuple(notes))


def _check(flags: Mapping[str, Any]) -> None:
    """Refuse what is not measured.

    Raises:
        PinnError: If another engine, a release before those that are known, ranks of data
            parallelism or drafts are asked for.
    """
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


def engine_arguments(flags: Mapping[str, Any]) -> list[str]:
    """Flags as vLLM takes them.

    Raises:
        PinnError: If weights would have to be of a format that vLLM makes of none.
    """
    precision = flags.get("precision")
    if precision not in (None, *ON_THE_FLY, *quantization_words("flag_methods")):
        raise PinnError(
            f"vLLM does not make {precision} of a checkpoint at start, only "
            f"{', '.join(ON_THE_FLY)}: give the path of a config.json whose weights are in that "
            "format"
        )
    return vllm_words(dict(flags))


def _design(
    wanted: MeasureRequest, model: str, flags: Mapping[str, Any], notes: list[str]
) -> list[tuple[str, float]]:
    """Batches in order with their worth; none, and a note why, where pinn does not know enough.

    Raises:
        PinnError: If the model does not fit, unless forced.
    """
    asked = [AskedLoad.read(text) for text in wanted.load or ()] or list(USUAL_LOADS)
    names = (str(card["name"]) for card in cards())
    card = wanted.gpu or next(filter(find_gpu, names), None)
    if card is None:
        notes.append("batches come in a usual order, since the GPU is not known: --gpu names it")
        return []
    start = Start(None, None, wanted.checkpoint)
    try:
        deployment = Target.of(model, card, flags).deployment()
        fit = memory_fit(deployment)
        if fit.fits:
            prior = start.prior(deployment, start.coefficients(deployment))
            found = design(deployment, prior, wanted.minutes, asked)
    except PinnError as error:
        notes.append(f"batches come in a usual order: {error}")
        return []
    if not fit.fits:
        if not wanted.force:
            raise PinnError(f"{fit.reason} (--force measures all the same)")
        notes.append(f"no design, so batches come in a usual order: {fit.reason}")
        return []
    notes += start.notes
    return [(str(batch), worth) for batch, worth in found]
