"""The interval of a step's time, and what is said beside it."""

from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

from pinn.coefficients import intervals
from pinn.common.files import find_kernels
from pinn.common.store import remembered_value
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.batch import parse_batch

# Which GPUs a checkpoint learned serving data of.


def gpu_is_known(checkpoint: Path, deployment: Deployment) -> bool:
    """Whether the checkpoint learned from serving data of the deployment's GPU.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    return deployment.gpu.name in served_gpus(checkpoint)


def served_gpus(checkpoint: Path) -> list[str]:
    """Names of the GPUs whose serving data a checkpoint learned from.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    return list(remembered_value(_served, checkpoint)["gpus"])


def _served(checkpoint: Path) -> dict[str, Any]:
    from pinn.coefficients.trained_network import load_checkpoint

    names = [name.rpartition(" on ") for name in load_checkpoint(checkpoint).anchor_names]
    return {"gpus": sorted({gpu for _, _, gpu in names})}


# Distances for commands: the surrogates that belong to a checkpoint, answers kept on disk.
#
# Loading what knows the measured kernels takes longer than a simulation, so its answer is
# remembered.


def locate(
    checkpoint: Path, deployment: Deployment, batch: str = intervals.REFERENCE_BATCH
) -> intervals.KernelDistance:
    """How far a step of a deployment lies from the kernels that a checkpoint learned from.

    Raises:
        PinnError: If there are no kernel surrogates, or the batch cannot be read.
    """
    return locate_each(checkpoint, deployment, [batch])[0]


def locate_each(
    checkpoint: Path, deployment: Deployment, batches: Sequence[str]
) -> list[intervals.KernelDistance]:
    """How far steps of a deployment lie from the kernels that a checkpoint learned from.

    Raises:
        PinnError: If there are no kernel surrogates, or the batch cannot be read.
    """
    folder = find_kernels(None, checkpoint)
    if folder is None:
        raise PinnError(
            "no kernel surrogates beside the checkpoint, so its distance from the data is unknown: "
            "fit them with 'python train.py kernels=on'"
        )
    # The JSON file holds the hash of the file beside it.
    found = remembered_value(_distances, folder / "kernels.json", deployment, list(batches))
    return [intervals.KernelDistance(**each) for each in found]


def outside_inputs(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    """Inputs beyond a checkpoint's training range, in standard deviations, farthest first.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    return remembered_value(_outside, checkpoint, deployment)


def _distances(kernels: Path, deployment: Deployment, batches: list[str]) -> list[dict[str, Any]]:
    from pinn.coefficients.kernel_distance import kernel_distance
    from pinn.kernels.surrogates import KernelSurrogates  # imports torch

    surrogates = KernelSurrogates.load(kernels.parent)
    return [vars(kernel_distance(surrogates, deployment, batch)) for batch in batches]


def _outside(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    from pinn.coefficients.surrogate import training_space
    from pinn.coefficients.trained_network import load_checkpoint

    space = training_space(load_checkpoint(checkpoint))
    return space.locate([deployment]).outside_names(0)


# How wide the interval of one step's time is.


def situation_of(checkpoint: Path, deployment: Deployment, batch: str) -> intervals.Situation:
    """Where a step lies from what was measured."""
    distance = locate(checkpoint, deployment, batch)
    return intervals.Situation(deployment, distance, gpu_is_known(checkpoint, deployment))


def step_half_width(calibration: intervals.StatedIntervals, gpu_known: bool, batch: str) -> float:
    """Half-width of a step's interval in log units; with prefill work the wider of two.

    TTFT teaches the half-width of steps with prompts, TPOT that of all.

    Args:
        calibration: Of the checkpoint.
        gpu_known: Whether it learned from serving data of the GPU.
        batch: Of the step.

    Raises:
        PinnError: If the batch cannot be read.
    """
    metrics = ["tpot", "ttft"] if any(parse_batch(batch).is_prefill) else ["tpot"]
    return max(calibration.half_width(metric, gpu_known) for metric in metrics)


# What is known of a prediction's error in plain words.

#: Most inputs that a sentence names.
_NAMED = 4


def describe_trust(
    situation: intervals.Situation,
    outside: Mapping[str, float],
    calibration: intervals.StatedIntervals,
) -> dict[str, Any]:
    """What left-out data of the same kind showed, ready for JSON.

    Args:
        situation: Of the step that stands for the whole.
        outside: Inputs beyond the training range, in standard deviations, farthest first.
        calibration: Of the checkpoint.

    Returns:
        ``kind`` of weights, ``place`` (what is known of the GPU), ``kernel_distance``, its parts
        ``by_operator``, ``beyond_left_out`` (whether it lies farther than every left-out row) and
        ``sentence``.
    """
    farthest = max(kind.farthest for kind in calibration.kinds)
    beyond = situation.distance.total > farthest
    sentences = [
        _shown(situation, calibration),
        _distance_words(situation, farthest, beyond),
        _outside_words(outside),
    ]
    return {
        "kind": intervals.kind_of(situation.deployment.model),
        "place": intervals.place_of(situation),
        "kernel_distance": situation.distance.total,
        "by_operator": dict(situation.distance.by_operator),
        "beyond_left_out": beyond,
        "sentence": " ".join(sentence for sentence in sentences if sentence),
    }


def _shown(situation: intervals.Situation, calibration: intervals.StatedIntervals) -> str:
    """How wrong left-out rows of the kind were, or of the nearest kind that there is."""
    kind, place = intervals.kind_of(situation.deployment.model), intervals.place_of(situation)
    found = intervals.nearest_kind(calibration.kinds, kind, place)
    asked = f"{kind} on {place}"
    asked = asked[0].upper() + asked[1:]
    models = "1 model" if found.models == 1 else f"{found.models} models"
    median, p90 = 100 * found.median, 100 * found.p90
    off = (
        f"({found.rows} rows of {models}) were off by {median:.0f} % in the median, by more than "
        f"{p90:.0f} % in one of ten."
    )
    if (found.kind, found.place) == (kind, place):
        return f"{asked}: step times of left-out rows of that kind {off}"
    return f"{asked}: no left-out row was of that kind; step times of {found.words} {off}"


def _distance_words(situation: intervals.Situation, farthest: float, beyond: bool) -> str:
    text = (
        "weighted by time, its kernels' sizes and GPUs differ from measured ones by a factor of "
        f"{situation.distance.factor:.2f}"
    )
    if beyond:
        return (
            f"Outside the data: {text}, in left-out rows by {exp(farthest):.2f} at most; expect "
            "more error than they showed."
        )
    return f"{text[0].upper()}{text[1:]}."


def _outside_words(outside: Mapping[str, float]) -> str:
    if not outside:
        return ""
    named = ", ".join(f"{name} ({by:+.1f})" for name, by in list(outside.items())[:_NAMED])
    more = f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
    return f"Inputs beyond the training range, in standard deviations: {named}{more}."
