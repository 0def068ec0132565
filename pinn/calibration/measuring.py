"""Choice of batches whose step times are measured, and the measuring program as one file."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
from jaxtyping import Float

from pinn.calibration.prior import Prior
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.program import MODULES
from pinn.measurements.program.batches import Limits, Wanted, fits, short_list
from pinn.measurements.program.session import COLD, KNOWN, LEAST
from pinn.memory.kv_cache import memory_fit
from pinn.memory.kv_layout import max_model_len
from pinn.physics.batch_sums import uniform_sums
from pinn.surrogate.deployment_features import padded_features
from pinn.surrogate.step_features import STEP_FEATURES, overlapped

# Assembly of the measuring program into one file that requires only the standard library and the
# engine.


def measuring_script(
    arguments: Sequence[str] = (), design: Sequence[tuple[str, float]] = ()
) -> str:
    """Return the source code of the measuring program as a single file.

    Args:
        arguments: Arguments that the program inserts before its command-line arguments.
        design: Batches in measuring order, each with its information gain (see :func:`design`); if
            empty, the program uses its default order.
    """
    folder = resources.files("pinn.measurements.program")
    parts = [_bare((folder / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]
    text = "\n\n".join([_HEAD, *parts])
    text = text.replace("ARGUMENTS: list[str] = []", f"ARGUMENTS: list[str] = {list(arguments)!r}")
    rows = "".join(f"\n    ({name!r}, {worth:.4g})," for name, worth in design)
    empty = "DESIGN: list[tuple[str, float]] = []"
    return text.replace(empty, f"{empty[:-1]}{rows}\n]" if rows else empty)


_HEAD = '''"""Measure whole steps of an LLM serving engine on this machine; written by pinn measure.

It needs only the engine and Python's standard library. Usage: python FILE --help
"""

from __future__ import annotations'''


def _bare(source: str) -> str:
    """Remove the imports of pinn and ``__future__`` from a module's source code."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(
            ("pinn.", "__future__")
        ):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines).rstrip()


# Experimental design: the order in which to measure batches. The next batch is the one that most
# narrows the intervals of the target loads' metrics per second of measuring.
#
# Under a Gaussian prior the covariance after a measurement does not depend on the measured value,
# so the order can be planned. Let S be the covariance of the coefficients, u the relative
# derivatives of a batch's step time with respect to the coefficients, and v those of a target
# metric. The relative times of two batches have the covariance
#
#     C = u S u' + m^2 exp(-d^2 / 2),
#
# where the second term is the error that no coefficient explains, with relative standard deviation
# m. Its correlation between two batches falls with the distance d between the logarithms of their
# sizes. Without this term, variants of the cheapest step would be measured repeatedly. A
# measurement of relative noise s changes the variance of the metric from v S v' to
#
#     v S v' - (v S u')^2 / (C + s^2),
#
# and likewise for other variances. The design is greedy: the next batch maximizes the mean over the
# metrics of log(variance before / variance after), divided by its measuring time in seconds.

#: ``NOISE``: a batch's step is not repeated further once the relative noise of its median time is
#: below this value. ``UNEXPLAINED``: relative standard deviation of the step time error that no
#: coefficient explains (an assumption).
NOISE, UNEXPLAINED = KNOWN, 0.02

#: Assumed time in seconds to set up and remove a batch, in addition to its steps.
_OVERHEAD_S = 0.02

#: Minimum relative variance of a metric, which keeps the logarithm of a variance ratio finite.
_LEAST_VARIANCE = 1e-8

_CONTEXTS = (250, 500, 1000, 2000, 4000, 8000, 16000, 30000)
_PROMPTS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_SEVERAL = ((4, 128), (16, 64), (8, 256), (2, 1024), (4, 1024), (2, 2048))
_CACHED = (1024, 4096, 16384)

Features = Float[np.ndarray, "n step_features"]
Rows = Float[np.ndarray, " batches"]
Beta = Float[np.ndarray, " step_features"]


@dataclass(frozen=True)
class AskedLoad:
    """Closed-loop load whose latency predictions the measurement should improve.

    Attributes:
        clients: Number of clients, each with one request in flight.
        prompt: Tokens of each prompt.
        output: Tokens of each output.
    """

    clients: int
    prompt: int
    output: int

    @staticmethod
    def read(text: str) -> "AskedLoad":
        """Parse a load such as ``32x4000x300``.

        Raises:
            PinnError: If the string does not describe such a load.
        """
        parts = text.lower().split("x")
        if len(parts) != 3 or not all(p.isdecimal() and 0 < int(p) < 10**7 for p in parts):
            remedy = "write CLIENTSxPROMPT_TOKENSxOUTPUT_TOKENS, such as 32x1000x200"
            raise PinnError(f"the load {text!r:.60} cannot be read: {remedy}")
        return AskedLoad(*map(int, parts))

    def batches(self, limits: Limits) -> tuple[Wanted, Wanted]:
        """Return typical batches of a load: one with only decodes, and one that also has a prompt.

        A prompt that exceeds the token budget is split into chunks.
        """
        clients = min(self.clients, limits.max_num_seqs)
        context = self.prompt + self.output // 2
        chunk = min(self.prompt, max(limits.budget - clients + 1, 1))
        with_prompt = Wanted(clients - 1, context if clients > 1 else 0, 1, chunk)
        return Wanted(clients, context), with_prompt


#: Default target loads: 1 to 256 clients with 1000 prompt tokens and 200 output tokens.
USUAL_LOADS = tuple(AskedLoad(n, 1000, 200) for n in (1, 16, 64, 256))


def deployment_limits(deployment: Deployment) -> Limits:
    """Predict the limits of a step: requests, tokens, lengths, KV cache and CUDA graphs.

    Raises:
        PinnError: If the model does not fit into GPU memory.
    """
    recipe, fit = deployment.recipe, memory_fit(deployment)
    if fit.kv_tokens is None:
        raise PinnError(fit.reason)
    graphs = 0 if deployment.serving.enforce_eager else recipe.graph_tokens
    return Limits(
        recipe.max_requests, recipe.token_budget, max_model_len(deployment), fit.kv_tokens,
        recipe.block_tokens, deployment.serving.enable_prefix_caching, graphs,
    )  # fmt: skip


def batch_features(deployment: Deployment, batches: Sequence[Wanted], beta: Beta) -> Features:
    """Return the step features of batches.

    A step takes the longer of kernel launching and GPU work according to ``beta``; features of the
    shorter one are 0.
    """
    columns = np.array(batches, dtype=float).reshape(len(batches), len(Wanted._fields)).T
    names = ("decode_requests", "decode_context", "prefill_requests", "prefill_tokens",
             "prefill_cached")  # fmt: skip
    named = dict(zip(names, columns, strict=True))
    sums = uniform_sums(**named, window=deployment.model.window_tokens)
    return overlapped(padded_features(deployment, sums), beta)


def load_features(
    deployment: Deployment, loads: Sequence[AskedLoad], limits: Limits, beta: Beta
) -> Float[np.ndarray, "figures step_features"]:
    """Return the step features of each load's TPOT and TTFT, two rows per load.

    The features times beta are seconds. In a closed loop of equal, unsynchronized requests, each
    request coincides with the prompt of every other request once while it generates. Its TPOT is
    therefore a decode step plus the additional step time of these prompts, divided by the number of
    output tokens. Its TTFT is half of the running step plus the steps of its own prompt.
    """
    rows = []
    for load in loads:
        usual, with_prompt = load.batches(limits)
        alone, mixed = batch_features(deployment, [usual, with_prompt], beta)
        steps = load.prompt / with_prompt.tokens
        others = (usual.decodes - 1) * steps / load.output
        rows += [alone + others * (mixed - alone), steps * mixed + alone / 2 * (usual.decodes > 1)]
    return np.array(rows)


def all_batches(limits: Limits, loads: Sequence[AskedLoad] = ()) -> list[Wanted]:
    """Return all candidate batches to measure, each of which the engine can run as one step.

    They include typical steps of the loads.
    """
    edge = limits.captured or 512
    decodes = (*(2**i for i in range(11)), 3, 6, 12, 24, 48, 96, 192, 384)
    sizes = sorted({*_PROMPTS, edge // 2, edge, edge + 64, limits.budget})
    found = [Wanted(n, c) for n in decodes for c in _CONTEXTS]
    found += [Wanted(0, 0, 1, t) for t in sizes]
    found += [Wanted(0, 0, n, t) for n, t in _SEVERAL]
    found += [Wanted(0, 0, 1, t, c) for t in (16, 128, 512, 2048) for c in _CACHED]
    found += [Wanted(n, c, 1, t) for n in decodes[::2] for c in (500, 1000, 4000)
              for t in (64, 256, 1024, 4096)]  # fmt: skip
    found += [batch for load in loads for batch in load.batches(limits)]
    return [batch for batch in dict.fromkeys(found) if fits(batch, limits)]


def design(
    deployment: Deployment, prior: Prior, minutes: float, loads: Sequence[AskedLoad] = USUAL_LOADS
) -> list[tuple[Wanted, float]]:
    """Return the batches to measure after the fixed initial ones, in order, with information gains.

    Args:
        deployment: Deployment to be measured.
        prior: Coefficients of the deployment before measuring.
        minutes: Available time in minutes. Batches for three times as long are planned, because the
            engine may be faster than predicted.
        loads: Loads whose prediction intervals the measurement should narrow.

    Returns:
        Batches, each with its information gain: the mean log of the factor by which measuring it
        narrows the intervals of the loads' metrics.
    """
    limits = deployment_limits(deployment)
    beta = prior.mean[: len(STEP_FEATURES)]
    covariance = prior.covariance[: len(beta), : len(beta)]
    first = short_list(limits)
    batches = [*first, *(batch for batch in all_batches(limits, loads) if batch not in first)]
    features = batch_features(deployment, batches, beta)
    seconds = features @ beta
    wanted = load_features(deployment, loads, limits, beta)
    asked = wanted / (wanted @ beta)[:, None]
    relative = features / seconds[:, None]
    between = relative @ covariance @ relative.T + UNEXPLAINED**2 * _likeness(batches)
    across = asked @ covariance @ relative.T
    before = np.einsum("ij,jk,ik->i", asked, covariance, asked)
    # Predicted seconds per prompt token in a prefill step that fills the token budget.
    tokens = min(limits.budget, limits.longest - 1)
    prompts = batch_features(deployment, [Wanted(0, 0, 1, tokens)], beta)
    per_token = float((prompts @ beta)[0] / tokens)
    chosen: list[tuple[Wanted, float]] = []
    held, spent = Wanted(0, 0), 0.0
    left = np.ones(len(batches), dtype=bool)
    while left.any() and spent < 3 * 60 * minutes:
        costs = _costs(batches, seconds, held, per_token)
        told = np.diag(between) + NOISE**2
        after = np.maximum(before[:, None] - across**2 / told, _LEAST_VARIANCE)
        gain = np.log(np.maximum(before[:, None] / after, 1.0)).mean(axis=0) / 2
        if left[: len(first)].any():
            best = int(np.argmax(left))
        else:
            best = int(np.argmax(np.where(left, gain / costs, -np.inf)))
            chosen.append((batches[best], float(gain[best])))
        before = after[:, best]
        across = across - np.outer(across[:, best], between[best]) / told[best]
        between = between - np.outer(between[best], between[best]) / told[best]
        left[best], held = False, batches[best]
        spent += costs[best]
    return chosen


def _likeness(batches: Sequence[Wanted]) -> Float[np.ndarray, "batches batches"]:
    """Return the correlation of unexplained step time errors between batches.

    The correlation is 1 for equal batches and decreases with the distance between their log sizes.
    """
    sizes = np.log1p(np.array(batches, dtype=float))
    square = ((sizes[:, None] - sizes[None]) ** 2).sum(axis=2)
    return np.exp(-square / 2)


def _costs(batches: Sequence[Wanted], seconds: Rows, held: Wanted, per_token: float) -> Rows:
    """Return the time in seconds to measure each batch after the batch ``held``.

    The time is that of prefilling the contexts that ``held`` does not already have, plus the
    batch's repeated steps.
    """
    kept = [held.decodes if b.context == held.context else 0 for b in batches]
    tokens = np.array([max(b.decodes - k, 0) * b.context + b.cached
                       for b, k in zip(batches, kept, strict=True)])  # fmt: skip
    return tokens * per_token + (LEAST + COLD + 2) * seconds + _OVERHEAD_S
