"""Sentences on a prediction's assumptions: engine release and speculative acceptance rate."""

from pinn.common.numbers import number
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import ASSUMED, measured_line, served_release


def release_line(deployment: Deployment, calibrated: bool = False) -> str:
    """Return a sentence about the served release and the releases in the training data.

    Calibrated coefficients do not depend on the training data's releases: the sentence then states
    whether the release is assumed.
    """
    engine, version = deployment.serving.engine, deployment.serving.engine_version
    if not calibrated:
        return measured_line(engine, version)
    assumed = "" if version else " (assumed; set it with --engine-version)"
    return f"{engine} {served_release(engine, version)}{assumed}, calibrated to measurements"


def acceptance_line(deployment: Deployment) -> str | None:
    """Return a sentence about the acceptance rate of draft tokens, or None without speculation."""
    recipe = deployment.recipe
    found = recipe.speculation
    if found is None:
        return None
    drafts, origin = f"{found.method}, {found.tokens} drafted tokens", recipe.origins["speculation"]
    if not found.acceptance:
        return f"Speculative decoding: {drafts}. The acceptance rate is unknown: {origin.text}."
    tokens = number(found.tokens_per_step)
    drafts = f"Speculative decoding: {drafts}, {tokens} tokens per request per step"
    if origin.kind == ASSUMED:
        return f"{drafts}. ASSUMED {origin.text} (set it with --speculative-acceptance)."
    return f"{drafts}, at the acceptance given."


def assumption_lines(deployment: Deployment, calibrated: bool = False) -> list[str]:
    """Return sentences about the engine's release and, with speculation, the acceptance rate.

    Args:
        deployment: Deployment whose times are predicted.
        calibrated: Whether the coefficients are calibrated to measurements of a server.
    """
    lines = [release_line(deployment, calibrated), acceptance_line(deployment)]
    return [line for line in lines if line is not None]
