"""What engines refuse to start, rule by rule, with the release and the file that say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pinn.specs.refusals import formats, parallel, releases, sizes
from pinn.specs.refusals.refusal import Refusal

if TYPE_CHECKING:
    from pinn.specs.deployment import Deployment

#: Each looks at a whole deployment; the first that finds something is told.
RULES: tuple[Callable[[Deployment], Refusal | None], ...] = (
    parallel.heads,
    parallel.kv_heads,
    parallel.experts_over_ranks,
    parallel.expert_width,
    parallel.dense_width,
    formats.block_experts,
    formats.block_dense,
    formats.block_attention,
    formats.groups,
    formats.capability,
    sizes.requests_per_step,
    sizes.whole_prompts,
    sizes.longest_context,
    sizes.block_size,
    sizes.chunk_of_pages,
    sizes.cache_format,
    sizes.latent_cache,
    releases.architecture,
    releases.prediction_layer,
    releases.draft_model,
    releases.drafts_beside_replicas,
)


def refusal_of(deployment: Deployment) -> Refusal | None:
    """Why its engine refuses a deployment; None where it starts as far as the rules know."""
    return next((found for rule in RULES if (found := rule(deployment)) is not None), None)
