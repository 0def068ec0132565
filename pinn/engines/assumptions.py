"""Sentences on a prediction's assumptions: engine release and speculative acceptance rate."""

from pinn.common.numbers import number
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import ASSUMED, measured_line


def release_line(deployment: Deployment) -> str:
    """Return a sentence about the served release and the releases in the training data."""
    return measured_line(deployment.serving.engine, deployment.serving.engine_version)


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


def assumption_lines(deployment: Deployment) -> list[str]:
    """Return sentences about the engine's release and, with speculation, the acceptance rate."""
    lines = [release_line(deployment), acceptance_line(deployment)]
    return [line for line in lines if line is not None]
