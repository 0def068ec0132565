"""Assumptions of a prediction that the user did not state: release and acceptance rate."""

from pinn.common.numbers import number
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import ASSUMED, measured_line


def release_line(deployment: Deployment) -> str:
    """Return a sentence on the releases that step times are trained on."""
    return measured_line(deployment.serving.engine, deployment.serving.engine_version)


def acceptance_line(deployment: Deployment) -> str | None:
    """Return a sentence on the assumed speculative acceptance; None without speculation."""
    recipe = deployment.recipe
    found = recipe.speculation
    if found is None:
        return None
    drafts, origin = f"{found.method}, {found.tokens} drafted tokens", recipe.origins["speculation"]
    if not found.acceptance:
        return f"Speculative decoding: {drafts}. Its gain is unknown: {origin.text}."
    gain = f"{number(found.tokens_per_step)} tokens per request and step"
    drafts = f"Speculative decoding: {drafts}, {gain}"
    if origin.kind == ASSUMED:
        return f"{drafts}. ASSUMED {origin.text} (set it with --speculative-acceptance)."
    return f"{drafts}, at the acceptance given."


def assumption_lines(deployment: Deployment) -> list[str]:
    """Return the sentences on the release and, if any, on the acceptance."""
    lines = [release_line(deployment), acceptance_line(deployment)]
    return [line for line in lines if line is not None]
