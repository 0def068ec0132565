"""What ``pinn plan`` was asked, once there are candidates for it."""

from __future__ import annotations

from collections.abc import Sequence

from pinn.errors import PinnError
from pinn.interface.commands.recipe_report import notices
from pinn.planning.brief import Brief
from pinn.planning.candidates import Candidate, Wanted, nearest_fit
from pinn.planning.plan import Ask, LeftOut


def ask_of(
    wanted: Wanted, found: Sequence[Candidate], misfits: Sequence[LeftOut], brief: Brief
) -> Ask:
    """For the record; stops where nothing can be planned.

    Raises:
        PinnError: If there is no candidate, with what comes nearest, or a GPU has no price.
    """
    if not found:
        raise PinnError(_fits_nowhere(misfits, wanted, brief))
    gpus = sorted({candidate.deployment.gpu.name for candidate in found})
    prices = brief.prices_per_gpu_hour
    unpriced = [gpu for gpu in gpus if gpu not in prices]
    if prices and unpriced:
        raise PinnError(f"--price names no price of {', '.join(unpriced)}: add {unpriced[0]}=...")
    load = brief.workload
    servings = dict.fromkeys(candidate.deployment.serving for candidate in found)
    said = [text for serving in servings for text in notices(serving).get("notices", ())]
    return Ask(
        model=found[0].deployment.model.title,
        workload=brief.load.title,
        requests=len(load),
        prompt_tokens=float(load.prompt_tokens.mean()),
        output_tokens=float(load.output_tokens.mean()),
        longest_tokens=int((load.prompt_tokens + load.output_tokens).max()),
        rate_per_s=brief.rate_per_s,
        slo=brief.limits.text,
        limits=brief.limits.sentences,
        gpus=gpus,
        max_gpus=brief.max_gpus,
        prices_per_gpu_hour=prices,
        notices=list(dict.fromkeys(said)),
    )


def _fits_nowhere(misfits: Sequence[LeftOut], wanted: Wanted, brief: Brief) -> str:
    """One line: the last misfit, which is on most GPUs, and the nearest thing that works."""
    if misfits:
        last = f"{misfits[-1].label}: {misfits[-1].reason}"
    else:
        most = "" if wanted.most_gpus is None else f" within --max-gpus {wanted.most_gpus}"
        last = f"the engine starts none of the grid's on {', '.join(wanted.gpus)}{most}"
    fit = nearest_fit(wanted, brief.workload)
    # A misfit that more GPUs do not mend names its own remedy.
    advice = "" if misfits else "; name other GPUs, or combinations with --candidates"
    return f"no candidate: {last}" + (f"; what fits is {fit}" if fit else advice)
