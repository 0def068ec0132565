"""Data-parallel ranks in lockstep: tokens per step of the shared experts.

If all ranks run a CUDA graph, each rank is padded to the largest rank, since all replay a graph of
the same size. If one rank launches eagerly, all ranks do, each with its own tokens. A rank without
work runs a dummy batch of one token.

Sources:

- Padding in vLLM 0.17.0 to 0.33.0: ``vllm/v1/worker/dp_utils.py: _synchronize_dp_ranks`` and
  ``vllm/v1/worker/gpu/dp_utils.py: sync_cudagraph_and_dp_padding``.
- Padding in earlier releases, which also pad eager steps: ``gpu_model_runner.py: get_dp_padding``
  (0.10.2, 0.11.0) and ``_determine_batch_execution_and_padding: allow_dp_padding`` (0.15.1,
  0.16.0).
- Dummy batch in vLLM: ``vllm/v1/engine/core.py: DPEngineCoreProc.run_busy_loop``.
- SGLang 0.5.3 to 0.5.23: ``layers/dp_attention.py: DpPaddingMode`` and
  ``model_executor/cuda_graph_runner.py: replay_prepare``. An idle rank has no token there, which
  matters only in steps that no graph pads.

TensorRT-LLM is assumed to behave like SGLang.
"""

from pinn.physics.step_values import RAMP
from pinn.simulator.client import first_of, group_of, replicas_of
from pinn.simulator.compiler import compiled_inside
from pinn.simulator.engine import Config, Engine
from pinn.simulator.state import PADDING

#: Indices of the batch sums that ranks share: prompts, decodes and prompt tokens
#: (``state.SHARED_SUMS``).
_PROMPTS, _DECODES, _PROMPT_TOKENS = range(3)


def share_work(engine: Engine, group: int) -> None:
    """Set the experts' work in a group's step: prompts, decodes and prompt tokens per rank.

    Each number is a mean over the ranks, after padding to the largest rank in CUDA graphs.
    """
    config, shared = engine.config, engine.groups[group].shared
    ranks, largest, most, eager = 0, first_of(engine, group), -1.0, 0.0
    for i in range(3):
        shared[i] = 0.0
    for replica in replicas_of(engine, group):
        sums = engine.replicas[replica].sums
        decodes = sums[_DECODES] + sums[PADDING]
        tokens = sums[_PROMPT_TOKENS] + decodes * (1 + config.drafts)
        for i in range(3):
            shared[i] += sums[i]
        shared[_DECODES] += sums[PADDING]
        if tokens == 0:
            shared[_DECODES] += 1
        if tokens > most:
            largest, most = replica, tokens
        eager = max(eager, _eager_share(config, sums[_PROMPT_TOKENS], decodes, tokens))
        ranks += 1
    if config.pads_eager_ranks and config.graph_tokens > 0:
        eager = 0.0
    fullest = engine.replicas[largest].sums
    for i in range(3):
        mean = shared[i] / ranks
        most = fullest[i] + (fullest[PADDING] if i == _DECODES else 0.0)
        shared[i] = mean + (1.0 - eager) * (most - mean)


def _eager_share(config: Config, prompt_tokens: float, decodes: float, tokens: float) -> float:
    """Return the share of a rank's layers that are launched outside CUDA graphs.

    Beyond the largest graph, the share rises gradually with the number of tokens, like the feature
    ``launched_layer``. It equals ``pinn.physics.step_values.eager_layers`` without the launches
    between the pieces of a piecewise graph.
    """
    if config.graph_tokens <= 0:
        return 1.0
    if config.graph_requests > 0:  # only decode-only steps have CUDA graphs
        if decodes > config.graph_requests:
            return 1.0
        tokens = prompt_tokens
    return min(max(RAMP * (tokens / config.graph_tokens - 1.0), 0.0), 1.0)


# Delay of new prompts while other requests decode (``--prefill-schedule-interval``).
#
# Sources: ``vllm/v1/core/sched/scheduler.py: Scheduler.schedule`` and ``vllm/v1/engine/core.py:
# DPEngineCoreProc._should_throttle_prefills`` of 0.24.0 to 0.33.0. Ranks in lockstep count steps
# together; a single engine counts the steps since its last step with prompts.


def holds_prompts(engine: Engine, replica: int) -> bool:
    """Return whether a replica's next batch delays prompts because other requests are decoding."""
    config, state = engine.config, engine.replicas[replica]
    state.has_chunks = False
    if config.prompt_interval == 1 or state.unserved > 0:
        return False
    if config.shares_experts:
        due = engine.groups[group_of(engine, replica)].turns % config.prompt_interval == 0
    else:
        due = state.since_prompts + 1 >= config.prompt_interval
    if due:
        return False
    for i in range(state.running):
        if engine.requests[engine.running[replica, i]].is_chunk == 0:
            return True
    return False


def note_prompts(engine: Engine, replica: int) -> None:
    """Update a replica's number of steps since its last prompts, after a batch was built."""
    state = engine.replicas[replica]
    if state.preempted == 0 and state.prompts_wait == 0 and state.paced == 0:
        state.unserved = engine.waiting[replica].size > 0
    if state.tokens > 0:
        state.since_prompts = 0 if state.has_chunks else state.since_prompts + 1


compiled_inside(__name__)
