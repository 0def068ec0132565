"""Batches of steps that are scheduled ahead of their run, told from summaries alone.

With asynchronous scheduling, vLLM's default, step j is scheduled while step j - 1 still runs. Two
things follow for summaries:

- The scheduler comes to step j + 1 when step j - 1 has ended, so that the time from the start of
  step j to that of step j + 1 is the run of step j - 1.
- A request whose prompt ended in step j - 1 has no output yet when step j is scheduled, so that
  step j counts it as a prefill of one token again: an *echo*. In truth it decodes there.

Echoes thus tell of the prefills of the step before, but for their tokens.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

#: Pairs of consecutive sampled steps, the first with one prefill of several tokens, below which
#: nothing is concluded, and the share of them that must be followed by an echo. A request with
#: a prompt of many chunks is followed by one too, but only once. Assumptions; in the public run
#: every one is.
MIN_PAIRS = 10
MIN_SHARE = 0.5


def is_ahead(steps: pd.DataFrame) -> Bool[np.ndarray, " steps"]:
    """Whether each step belongs to a segment whose steps are scheduled ahead.

    Args:
        steps: Canonical steps in their order.
    """
    segment = steps["segment"].to_numpy()
    requests, tokens = (steps[f"prefill_{c}"].to_numpy() for c in ("requests", "tokens"))
    first = np.flatnonzero(follows(steps)) - 1
    first = first[(requests[first] == 1) & (tokens[first] > 1)]
    echoed = (requests[first + 1] == 1) & (tokens[first + 1] == 1)
    pairs = pd.Series(echoed).groupby(segment[first]).agg(["size", "mean"])
    found = pairs.index[(pairs["size"] >= MIN_PAIRS) & (pairs["mean"] > MIN_SHARE)]
    return np.isin(segment, found)


def follows(steps: pd.DataFrame) -> Bool[np.ndarray, " steps"]:
    """Whether the row above is the step right before."""
    found = np.zeros(len(steps), dtype=bool)
    same = np.diff(steps["segment"].to_numpy()) == 0
    found[1:] = same & (np.diff(steps["step_id"].to_numpy()) == 1)
    return found


def own_work(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps with their echoes counted as decodes.

    Where there are more prefill tokens than prefills, one prefill is taken to be real and the
    others are echoes; else all are.

    Args:
        steps: Canonical steps that are scheduled ahead.
    """
    echoes = _echoes(steps)
    return steps.assign(
        prefill_requests=steps["prefill_requests"].to_numpy(float) - echoes,
        prefill_tokens=steps["prefill_tokens"].to_numpy(float) - echoes,
        decode_requests=steps["decode_requests"].to_numpy(float) + echoes,
    )


def work_before(steps: pd.DataFrame, chunk_tokens: float) -> pd.DataFrame:
    """An estimate of what ran in the step before each: the echoes as prefills, decodes unchanged.

    Args:
        steps: Canonical steps that are scheduled ahead.
        chunk_tokens: Mean tokens of a real prefill.
    """
    echoes = _echoes(steps)
    return steps.assign(prefill_requests=echoes, prefill_tokens=echoes * chunk_tokens)


def mean_chunk(steps: pd.DataFrame) -> float:
    """Mean tokens of a real prefill; 1 where none is seen."""
    own = own_work(steps)
    requests = float(own["prefill_requests"].sum())
    return float(own["prefill_tokens"].sum()) / requests if requests else 1.0


def _echoes(steps: pd.DataFrame) -> Float[np.ndarray, " steps"]:
    requests = steps["prefill_requests"].to_numpy(float)
    has_real = steps["prefill_tokens"].to_numpy(float) > requests
    return np.where(has_real, np.maximum(requests - 1, 0), requests)
