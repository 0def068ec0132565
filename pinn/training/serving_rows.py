"""Measured deployments as rows that are linear in the coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from pinn.embedding.descriptors import embed
from pinn.features.request import REQUEST_FEATURES, RequestState, request_features
from pinn.features.step import step_features
from pinn.observations.closed_loop import ClosedLoop, closed_loop_steps
from pinn.observations.deployments import observed_deployments
from pinn.physics.costs import StepCosts, step_costs
from pinn.physics.floor import floor_seconds
from pinn.specs.deployment import Deployment
from pinn.specs.serving_defaults import default_max_num_batched_tokens


@dataclass(frozen=True)
class ServingRows:
    """``n`` closed-loop measurements of ``m`` deployments.

    TPOT = beta . tpot_features; TTFT = beta . ttft_features + alpha . request_features, where the
    request features marked in ``step_time_entries`` are 1 and stand for the row's own TPOT.

    Attributes:
        row_id: Name of each row in its source.
        deployments: The distinct deployments.
        deployment: Index of each row's deployment.
        concurrency: Clients of each row's benchmark.
        tpot_features: Mean step features of a decode interval.
        ttft_features: Summed step features of the steps from arrival to first token.
        request_features: Features of the mean request.
        tpot_s: Measured mean time per output token.
        ttft_s: Measured mean time to first token.
        tpot_floor_s: Mean physical floor of a decode interval.
        ttft_floor_s: Summed floors of the steps from arrival to first token.
        weight: Of each row in a loss; mean 1.
    """

    row_id: tuple[str, ...]
    deployments: tuple[Deployment, ...]
    deployment: Int[np.ndarray, " n"]
    concurrency: Int[np.ndarray, " n"]
    tpot_features: Float[np.ndarray, "n step_features"]
    ttft_features: Float[np.ndarray, "n step_features"]
    request_features: Float[np.ndarray, "n request_features"]
    tpot_s: Float[np.ndarray, " n"]
    ttft_s: Float[np.ndarray, " n"]
    tpot_floor_s: Float[np.ndarray, " n"]
    ttft_floor_s: Float[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.tpot_s)

    def take(self, keep: np.ndarray) -> ServingRows:
        """The rows where ``keep`` is true, with the deployments they need and fresh weights."""
        used, index = np.unique(self.deployment[keep], return_inverse=True)
        deployments = tuple(self.deployments[i] for i in used)
        return ServingRows(
            tuple(r for r, kept in zip(self.row_id, keep, strict=True) if kept),
            deployments,
            index,
            self.concurrency[keep],
            self.tpot_features[keep],
            self.ttft_features[keep],
            self.request_features[keep],
            self.tpot_s[keep],
            self.ttft_s[keep],
            self.tpot_floor_s[keep],
            self.ttft_floor_s[keep],
            model_weights([deployments[i].model.name for i in index]),
        )

    def embedding(self) -> tuple[np.ndarray, np.ndarray]:
        """Descriptors and log rates of the distinct deployments."""
        return embed(self.deployments)


#: Which request features are multiples of the configuration's own step time.
STEP_TIME_ENTRIES = np.array([name.endswith(".step_time") for name in REQUEST_FEATURES])


def model_weights(models: Sequence[str]) -> Float[np.ndarray, " n"]:
    """1 / sqrt(rows of the same model), scaled to mean 1: no model drowns the others."""
    _, index, counts = np.unique(np.array(models), return_inverse=True, return_counts=True)
    weight = 1 / np.sqrt(counts[index])
    return weight / weight.mean()


_LOAD = ("concurrency", "prompt_tokens", "output_tokens")


def serving_rows(observations: pd.DataFrame) -> ServingRows:
    """Work out the features of closed-loop observations.

    Args:
        observations: Table as ``pinn.observations.table.read_observations`` gives it. The token
            budget of a step is taken to be vLLM's default on the row's GPU.
    """
    of_row = observed_deployments(observations)
    deployments = tuple(dict.fromkeys(of_row.values()))
    place = {deployment: i for i, deployment in enumerate(deployments)}
    index = np.array([place[of_row[row_id]] for row_id in observations["row_id"]])
    loads = [
        ClosedLoop(
            concurrency,
            prompt,
            output,
            default_max_num_batched_tokens(deployments[i].gpu),
            deployments[i].model.window_tokens,
        )
        for i, (concurrency, prompt, output) in zip(
            index, observations[list(_LOAD)].to_numpy().tolist(), strict=True
        )
    ]
    costs = step_costs(deployments)
    means = [_means(costs.take(i), load) for i, load in zip(index, loads, strict=True)]
    tpot_features, ttft_features, tpot_floor, ttft_floor = (
        np.array(column) for column in zip(*means, strict=True)
    )
    return ServingRows(
        tuple(observations["row_id"]),
        deployments,
        index,
        observations["concurrency"].to_numpy(np.int64),
        tpot_features,
        ttft_features,
        _request_features(deployments, index, loads),
        observations["tpot_s"].to_numpy(np.float64),
        observations["ttft_s"].to_numpy(np.float64),
        tpot_floor,
        ttft_floor,
        model_weights([deployments[i].model.name for i in index]),
    )


def _means(costs: StepCosts, load: ClosedLoop) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Features and floors of the benchmark's mean TPOT and TTFT."""
    steps = closed_loop_steps(load)
    features, floors = step_features(costs, steps.sums), floor_seconds(costs, steps.sums)
    return (
        steps.tpot_share @ features,
        steps.ttft_share @ features,
        float(steps.tpot_share @ floors),
        float(steps.ttft_share @ floors),
    )


def _request_features(
    deployments: Sequence[Deployment], index: np.ndarray, loads: Sequence[ClosedLoop]
) -> np.ndarray:
    """Features of the mean request; queue and cache states are unknown here and left at 0.

    The server takes in prompts one after another: a request also waits for those that came before
    it in the burst that starts the benchmark.
    """
    n = len(loads)
    serving = [deployments[i].serving for i in index]
    zero = np.zeros(n)
    state = RequestState(
        prompt_tokens=np.array([load.mean_prompt_tokens * load.mean_burst for load in loads]),
        step_time_s=np.ones(n),
        queue_share=zero,
        kv_usage=zero,
        prompt_share=zero,
        inverse_tensor_parallel=np.array([1 / s.tensor_parallel_size for s in serving]),
        prefix_caching=np.array([float(s.enable_prefix_caching) for s in serving]),
        chunked_prefill=np.array([float(s.enable_chunked_prefill) for s in serving]),
        recomputed_tokens=zero,
    )
    features = request_features(state)
    before_first_token = [
        f.phase in ("arrival_to_queue", "queue_to_schedule", "schedule_to_first_token")
        or f.name == "output_token.constant"
        for f in REQUEST_FEATURES.values()
    ]
    return features * before_first_token
