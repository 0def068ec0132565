"""Features of a deployment's steps, including verifying and drafting in speculative decoding.

A step has D decodes with C context tokens each, and F prompts with P new tokens each. It consists
of

- one pass of the model with k + 1 tokens per decode, all of which are sampled. The pass reads the
  keys of each context once and combines them with k + 1 queries;
- a first pass of the draft model over the same tokens, which caches their keys and drafts one token
  per request;
- p - 1 further passes of the draft model with one token per request, or one per branch of a tree,

where k is the number of draft tokens per request and p the number of draft passes. N-grams are
looked up without a pass. The draft model has the step coefficients (beta) of the target model,
because its layers run the same kernels. Scheduling and work per request count once per step. The
rejection sampler, host work between two draft passes, and eager launches of draft layers with large
prompts are not counted. The step time assumes that every decode has all its draft tokens, although
n-grams without a match have none.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import StepCosts, draft_costs, model_costs, step_costs
from pinn.physics.step_values import floor_seconds
from pinn.specs.model import Sampling
from pinn.specs.precision import ACTIVATION_BYTES
from pinn.surrogate.step_features import STEP_FEATURES, step_features

#: Indices of the features that count once per step, even in a step with draft passes.
ONCE = tuple(list(STEP_FEATURES).index(name) for name in ("step", "request"))
#: CUDA graph size, in tokens, larger than any step, since an engine with CUDA graphs is assumed to
#: run every draft pass as a graph.
_ALWAYS_A_GRAPH = 1e18


@dataclass(frozen=True)
class SpeculativeCosts:
    """Costs of the passes of a step with speculative decoding; fields of shape ``[1]``.

    Attributes:
        tokens: Number of draft tokens per request (k).
        passes: Number of passes of the draft model; 0 without a draft model.
        branches: Rows per request in each draft pass except the first.
        verified: Costs of the target model's pass.
        first: Costs of the draft model's first pass; without a draft model, the target model's
            costs, which are then not used.
        later: Costs of each further pass of the draft model.
    """

    tokens: int
    passes: int
    branches: int
    verified: StepCosts
    first: StepCosts
    later: StepCosts

    def drafting(self, sums: BatchSums) -> list[tuple[int, StepCosts, BatchSums]]:
        """Return (number of passes, costs, batch sums) of first and later draft passes.

        The list is empty without a draft model.
        """
        if self.passes == 0:
            return []
        first = drafted_sums(sums, self.tokens, "prefill_tokens")
        later = later_pass_sums(sums, self.branches)
        return [(1, self.first, first), (self.passes - 1, self.later, later)]


@lru_cache(maxsize=1024)
def speculative_costs(deployment: Deployment) -> SpeculativeCosts | None:
    """Return the costs of the passes of a deployment's steps; None without speculative decoding."""
    drafts = deployment.recipe.speculation
    if drafts is None:
        return None
    rows = drafts.tokens + 1
    plain = model_costs([deployment])
    verified = _with_queries(plain, rows, rows)
    if deployment.draft is None:
        return SpeculativeCosts(drafts.tokens, 0, 1, verified, plain, plain)
    draft = draft_pass_costs(deployment)
    first, later = _with_queries(draft, rows, 1), _with_queries(draft, 1, drafts.branches)
    return SpeculativeCosts(drafts.tokens, drafts.passes, drafts.branches, verified, first, later)


def _with_queries(costs: StepCosts, queries: int, rows: int) -> StepCosts:
    """Return the costs of decodes with ``queries`` tokens and ``rows`` CUDA graph rows each."""
    return replace(
        costs,
        decode_pair_s=costs.decode_pair_s * queries,
        windowed_decode_pair_s=costs.windowed_decode_pair_s * queries,
        graph_requests=costs.graph_requests * rows,
    )


def draft_pass_costs(deployment: Deployment) -> StepCosts:
    """Return the costs of one pass of the draft model, as arrays of shape ``[1]``.

    The costs include the layers, the output head with greedy sampling, and the projection of
    embeddings and the target model's outputs to hidden states.
    """
    draft, gpu = deployment.draft, deployment.gpu
    assert draft is not None, "the deployment has no draft model"
    costs = draft_costs(deployment, draft.model, Sampling(temperature=0.0))
    weights = draft.projection_weights
    return replace(
        costs,
        gemm_weights_s=costs.gemm_weights_s
        + weights * ACTIVATION_BYTES / gpu.memory_bandwidth_bytes_per_s,
        gemm_token_s=costs.gemm_token_s + 2.0 * weights / gpu.peak_flop_per_s["bf16"],
        graph_tokens=np.where(costs.graph_tokens > 0, _ALWAYS_A_GRAPH, 0.0),
        offload_s=np.zeros(1),
    )


def drafted_sums(sums: BatchSums, tokens: int, rows: str) -> BatchSums:
    """Return the sums of a pass in which each decode also has draft tokens.

    Args:
        sums: Sums of the batches without draft tokens.
        tokens: Number of draft tokens per request.
        rows: Field to which draft tokens are added: ``decode_requests`` for the target model, which
            samples all of them; ``prefill_tokens`` for the draft model's first pass, which samples
            one per request.
    """
    added = sums.decode_requests * tokens
    more = (rows, "decode_context", "windowed_decode_context")
    found = {name: getattr(sums, name) + added for name in more}
    return replace(sums, **found, padding=sums.padding * (1 + tokens))


def later_pass_sums(sums: BatchSums, branches: int) -> BatchSums:
    """Return the sums of a later draft pass, with one token per request or per branch."""
    known = sums.prefill_cached + sums.prefill_tokens
    near = sums.windowed_prefill_cached + sums.prefill_tokens
    nothing = {f.name: np.zeros_like(sums.prefill_requests) for f in fields(BatchSums)}
    rows = {
        "decode_requests": branches * sums.requests,
        "decode_context": branches * (sums.decode_context + known),
        "windowed_decode_context": branches * (sums.windowed_decode_context + near),
        "padding": branches * sums.padding,
    }
    return BatchSums(**(nothing | rows))


def drafting_features(deployment: Deployment, sums: BatchSums) -> Float[np.ndarray, "... features"]:
    """Return the step features of all draft passes; 0 without a draft model."""
    costs, found = speculative_costs(deployment), np.zeros((*sums.tokens.shape, len(STEP_FEATURES)))
    for times, each, of_pass in costs.drafting(sums) if costs else ():
        found = found + times * step_features(each, of_pass)
    found[..., ONCE] = 0.0
    return found


def deployment_features(
    deployment: Deployment, sums: BatchSums
) -> Float[np.ndarray, "... features"]:
    """Return the step features of a deployment's steps, including all draft passes.

    Args:
        deployment: Deployment that runs the steps.
        sums: Sums of batches in which a decode counts once, with any number of tokens to verify.
    """
    costs = speculative_costs(deployment)
    if costs is None:
        return step_features(step_costs([deployment]), sums)
    verified = step_features(costs.verified, drafted_sums(sums, costs.tokens, "decode_requests"))
    # Host work per request counts once, regardless of the number of verified tokens.
    verified[..., ONCE] = step_features(costs.verified, sums)[..., ONCE]
    return verified + drafting_features(deployment, sums)


def padded_features(deployment: Deployment, sums: BatchSums) -> Float[np.ndarray, "... features"]:
    """Return the step features of batches that the engine pads to CUDA graph sizes.

    Args:
        deployment: Deployment that runs the steps.
        sums: Sums of the batches without padding, as for :func:`deployment_features`.
    """
    return deployment_features(deployment, sums.padded(deployment.recipe.graph_sizes))


def deployment_floor_seconds(deployment: Deployment, sums: BatchSums) -> Float[np.ndarray, "..."]:
    """Return the roofline lower bound of steps in seconds, summed over target and draft passes."""
    costs = speculative_costs(deployment)
    if costs is None:
        return floor_seconds(step_costs([deployment]), sums)
    found = floor_seconds(costs.verified, drafted_sums(sums, costs.tokens, "decode_requests"))
    for times, each, of_pass in costs.drafting(sums):
        found = found + times * floor_seconds(each, of_pass)
    return found
