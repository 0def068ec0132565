"""Step features of the Go simulator BLIS, and the fit of its coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linprog, nnls

from pinn.export.blis_model import BlisModel
from pinn.physics.batch_sums import BatchSums
from pinn.simulator import run, state

# BLIS's eleven basis functions as in its Go code, with its simplifications.
#
# Expert dispatch is computed as in BLIS's default back end; other back ends multiply the term by
# top-k.

#: Units of the coefficients of basis functions, by function, in the order of ``--beta-coeffs``.
BASIS: dict[str, str] = {
    "prefill_compute": "1",
    "decode_compute": "1",
    "weights": "1",
    "all_reduce": "1",
    "layer": "us/layer",
    "request": "us/request",
    "step": "us/step",
    "interleaved_moe_layer": "us/layer",
    "prefill_kv_write": "1",
    "decode_kv": "1",
    "moe_dispatch": "1",
}

Counts = Float[np.ndarray, " batches"]


@dataclass(frozen=True)
class BlisSums:
    """Sums over the requests of each batch, from which BLIS's basis functions are computed.

    Attributes:
        prefill_tokens: T_p, number of new tokens of requests that process their prompt.
        decode_requests: T_d, number of decodes.
        decode_context: C, sum over decodes of ProgressIndex, BLIS's name for the tokens that a
            request has so far.
        requests: B, number of requests.
        prompt_reach: Sum over prefills of t (S + t / 2), where t is the number of new tokens and S
            the prompt's length.
    """

    prefill_tokens: Counts
    decode_requests: Counts
    decode_context: Counts
    requests: Counts
    prompt_reach: Counts

    @classmethod
    def of(cls, sums: BatchSums, decode_context: Counts, prompt_reach: Counts) -> BlisSums:
        """Return BLIS's sums for batches of one data-parallel replica.

        The context of a step includes a decode's new token, but BLIS's ProgressIndex does not.
        """
        progress = decode_context - sums.decode_requests
        return cls(sums.prefill_tokens, sums.decode_requests, progress, sums.requests, prompt_reach)

    def scaled(self, factor: float) -> BlisSums:
        """Multiply the sums by ``factor``, for example to sum over identical replicas."""
        return BlisSums(*(factor * values for values in vars(self).values()))


def recorded_sums(steps: run.StepRecords) -> BlisSums:
    """Return the batch sums of simulated steps, averaged over data-parallel replicas.

    Contexts are those of the slowest replica, scaled to the average number of decodes and prompt
    tokens.
    """
    slowest, mean = steps.sums, steps.shared_sums
    own = BlisSums.of(slowest, steps["decode_context"], steps[state.PROMPT_REACH])
    decodes = _times(mean.decode_requests, slowest.decode_requests)
    prompts = _times(mean.prefill_tokens, slowest.prefill_tokens)
    return BlisSums(
        mean.prefill_tokens, mean.decode_requests, own.decode_context * decodes, mean.requests,
        own.prompt_reach * prompts,
    )  # fmt: skip


def _times(mean: Counts, own: Counts) -> Counts:
    return np.divide(mean, own, out=np.ones_like(own), where=own > 0)


def blis_features(m: BlisModel, s: BlisSums) -> Float[np.ndarray, "batches basis"]:
    """Return the values (X) of BLIS's basis functions for batches, in microseconds.

    Args:
        m: BLIS's description of the deployment's model and GPU.
        s: Sums of batches, over all data-parallel replicas.
    """
    tp, dp, group = m.tensor_parallel, m.data_parallel, m.tensor_parallel * m.data_parallel
    flop_per_us, bytes_per_us = m.peak_tflops * 1e6, m.bandwidth_tb_s * 1e6
    d, d_h, a = m.hidden_size, m.head_dim, m.activation_bytes
    k_v = m.kv_heads * d_h
    q = 2 * d + 2 * k_v
    moe, dense = m.moe_layers, m.dense_layers
    tokens = s.prefill_tokens + s.decode_requests
    routed, shared = m.top_k * m.expert_width / group, m.shared_width / (tp * dp)
    ffn = 6 * d * (moe * (routed + shared) + dense * m.dense_width / (tp * dp))
    attention = m.layers / dp * 4 * (m.heads / tp) * d_h
    projections = 2 * m.layers * d * q / (tp * dp)
    stored = m.experts * m.expert_width / group + m.shared_width / tp
    weights = m.layers * d * q * m.weight_bytes / tp + 3 * d * m.weight_bytes * (
        moe * stored + dense * m.dense_width / tp
    )
    reduce_us = tokens * d * a * 2 * (tp - 1) / (tp * bytes_per_us)
    reduces = (m.layers + dense) / dp + (moe if moe and dp == 1 and tp > 1 else 0)
    kv_us = 4 * m.layers * (k_v / (tp * dp)) / bytes_per_us
    dispatch_us = moe * (tokens / dp) * ((group - 1) / group) * 2 * d * a / bytes_per_us
    ones = np.ones_like(tokens)
    columns = (
        ((projections + ffn) * s.prefill_tokens + attention * s.prompt_reach) / flop_per_us,
        ((projections + ffn) * s.decode_requests + attention * s.decode_context) / flop_per_us,
        weights / bytes_per_us * ones,
        reduce_us * reduces,
        m.layers * ones,
        s.requests,
        ones,
        (moe if m.interleave else 0) * ones,
        kv_us * s.prefill_tokens,
        kv_us * (s.decode_context + s.decode_requests),
        dispatch_us if dp > 1 else 0 * ones,
    )
    return np.stack(columns, axis=-1)


def blis_step_us(
    features: Float[np.ndarray, "batches basis"], beta: Float[np.ndarray, " basis"]
) -> Float[np.ndarray, " batches"]:
    """Return BLIS's step time: the sum of coefficients (beta) x features, in us, at least 1."""
    return np.maximum(np.trunc(features @ beta), 1.0)


# Fit of BLIS's formula: the coefficients that minimize the errors relative to the surrogate over
# given batches.

#: Basis functions that do not depend on the batch and get coefficient 0. The constant part of a
#: step is fitted to ``step`` alone: a fit cannot distinguish the constants, and ``weights`` depends
#: on the bytes per weight that BLIS assumes.
CONSTANTS = ("weights", "layer", "interleaved_moe_layer")

_PROMPTS, _REQUESTS = (list(BASIS).index(name) for name in ("prefill_compute", "request"))
_FITTED = np.array([name not in CONSTANTS for name in BASIS])
#: A batch counts as stalled, and is omitted, if a fit to all batches predicts less than this share
#: of its simulated time.
_STALLED = 0.5
#: Maximum number of batches to fit per load. Twice as many would change every median step time
#: error by less than 0.02 percentage points.
_ROWS = 400
#: Maximum relative errors of three sums of step times: over all batches, over all batches weighted
#: by their requests, and over batches with a prompt.
_SUMS = (0.01, 0.01, 0.02)
#: Weights of the amounts by which the errors of these three sums exceed ``_SUMS``. The mean error
#: of the batches has weight 1.
_BEYOND_SUMS = (1000.0, 30.0, 10.0)


@dataclass(frozen=True)
class Timed:
    """BLIS's features and the surrogate's step times for batches.

    Attributes:
        features: Values of BLIS's basis functions for each batch, ``[batches, basis]``.
        step_us: The surrogate's step time of each batch, in microseconds.
    """

    features: Float[np.ndarray, "batches basis"]
    step_us: Float[np.ndarray, " batches"]

    def __getitem__(self, rows: slice | np.ndarray) -> Timed:
        return Timed(self.features[rows], self.step_us[rows])

    @property
    def relative(self) -> Float[np.ndarray, "batches basis"]:
        """Divide features by step times, so that their product with exact coefficients is 1."""
        return self.features / self.step_us[:, None]

    def errors(self, beta: Float[np.ndarray, " basis"]) -> Float[np.ndarray, " batches"]:
        """Return each batch's relative step time error, BLIS / surrogate - 1."""
        return blis_step_us(self.features, beta) / self.step_us - 1


@dataclass(frozen=True)
class Limited:
    """Batches whose step time errors are limited in a fit, as far as BLIS's formula allows.

    Attributes:
        batches: BLIS's features and the surrogate's step times for the batches.
        limit: Maximum absolute relative error of a step time.
        weight: Weight of the excess of the maximum error over the limit, relative to the mean
            error.
    """

    batches: Timed
    limit: float
    weight: float


@dataclass(frozen=True)
class Projection:
    """Coefficients of BLIS fitted to the surrogate's step times, with their errors.

    Attributes:
        beta: Step-time coefficients, for BLIS's option ``--beta-coeffs``, in the order of
            ``BASIS``.
        zeroed: Names of basis functions whose coefficient is 0 although they occur in the batches;
            constants are not listed.
        errors: Relative step time errors |BLIS - surrogate| / surrogate of held-out batches.
    """

    beta: Float[np.ndarray, " basis"]
    zeroed: tuple[str, ...]
    errors: Float[np.ndarray, " batches"]

    @property
    def median_error(self) -> float:
        """Return the median absolute relative step time error of the held-out batches."""
        return float(np.median(self.errors))


def project(batches: Timed, guards: Sequence[Limited] = ()) -> Projection:
    """Fit BLIS's coefficients to every second batch, and evaluate them on the other batches.

    Args:
        batches: Batches of a load.
        guards: Additional batches, whose step time errors are limited.
    """
    beta = fit(batches[::2], guards)
    occurs = (batches.features.max(0) > 0) & _FITTED
    zeroed = tuple(np.array(list(BASIS))[occurs & (beta == 0)].tolist())
    return Projection(beta, zeroed, np.abs(batches[1::2].errors(beta)))


def fit(batches: Timed, guards: Sequence[Limited] = ()) -> Float[np.ndarray, " basis"]:
    """Return the non-negative coefficients for BLIS with the smallest mean error within limits.

    Errors are absolute relative errors of step times. BLIS's formula is linear where the
    surrogate's step time is nonlinear, so a good fit to most batches has large errors for a few.
    Least absolute deviations tolerate such outliers.

    Three sums of step times are limited to small relative errors: over all batches (the engine's
    time), weighted by requests (E2E latency), and over batches with a prompt (TTFT). The error of
    each batch in ``guards`` is also limited. Limits that cannot be met are exceeded as little as
    possible. The fit is a single linear program.
    """
    size = np.linalg.norm(batches.relative, axis=0)
    used = (size > 0) & _FITTED
    rows = batches.relative[:, used] / size[used]
    sums = _sums(rows, batches)
    few = rows[np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int)]
    limited = [(few, 0.0, np.arange(len(few)))]
    limited += [(row[None], most, np.zeros(1, int)) for row, most in zip(sums, _SUMS, strict=False)]
    for guard in guards:
        guarded = guard.batches.relative[:, used] / size[used]
        limited.append((guarded, guard.limit, np.zeros(len(guarded), int)))
    weights = (1 / len(few), *_BEYOND_SUMS[: len(sums)], *(guard.weight for guard in guards))
    found = least_deviations(limited, weights)
    beta = np.zeros(len(BASIS))
    beta[used] = found / size[used]
    return beta


def least_deviations(
    limited: Sequence[tuple[Float[np.ndarray, "_ used"], float, Int[np.ndarray, " _"]]],
    weights: Sequence[float],
    least: Float[np.ndarray, " used"] | None = None,
) -> Float[np.ndarray, " used"]:
    """Return coefficients that exceed limits on |row . coefficients - 1| as little as possible.

    Args:
        limited: Tuples of rows, the maximum allowed |row . coefficients - 1|, and an index per row
            of its excess over this maximum. Rows with the same index share one excess, the largest
            of theirs.
        weights: Weight of each tuple's excesses in the minimized sum.
        least: Minimum of each coefficient; 0 by default.
    """
    counts = [int(which.max()) + 1 for _, _, which in limited]
    # The linear program has one column per excess. Rows that share an excess use the same column.
    firsts = np.cumsum([0, *counts])
    which = np.concatenate([first + at for first, (_, _, at) in zip(firsts, limited, strict=False)])
    shared = np.eye(firsts[-1])[which]
    left = np.concatenate([rows for rows, _, _ in limited])
    limit = np.concatenate([np.full(len(rows), most) for rows, most, _ in limited])
    lowest = np.zeros(left.shape[1]) if least is None else least
    solved = linprog(
        np.concatenate([np.zeros(left.shape[1]), np.repeat(weights, counts)]),
        A_ub=np.block([[left, -shared], [-left, -shared]]),
        b_ub=np.concatenate([1 + limit, limit - 1]),
        bounds=[(low, None) for low in (*lowest.tolist(), *[0.0] * firsts[-1])],
        method="highs",
    )
    assert solved.x is not None, solved.message
    return np.maximum(solved.x[: left.shape[1]], lowest)


def _sums(
    rows: Float[np.ndarray, "batches used"], batches: Timed
) -> Float[np.ndarray, "sums used"]:
    """Return rows whose dot products with the coefficients are sums of step times.

    The sums are over all batches, over all batches weighted by requests, and over batches with
    prompts. Each row is divided by the surrogate's sum, so that row . coefficients is 1 for an
    exact fit. Stalled batches, which take far longer than a least-squares fit predicts, are omitted
    unless all batches are stalled.
    """
    q, r = np.linalg.qr(rows)
    squares, _ = nnls(r, q.sum(0))
    near = rows @ squares > _STALLED
    usual = batches.step_us * (near if near.any() else True)
    requests, prompts = batches.features[:, _REQUESTS], batches.features[:, _PROMPTS] > 0
    weights = [usual, usual * requests, usual * prompts]
    return np.stack([weight @ rows / weight.sum() for weight in weights if weight.any()])
