"""Steps that are scheduled ahead of their run: echoes of prefills are told from prefills."""

import numpy as np
import pandas as pd
import pytest

from pinn.measurements.traces.interval_batches import (
    follows,
    is_ahead,
    mean_chunk,
    own_work,
    work_before,
)


def summaries(prefill_tokens: list[int], echo: bool) -> pd.DataFrame:
    """Every step of a server; a positive number is a step with one prefill of that many tokens."""
    tokens = np.array(prefill_tokens)
    real = (tokens > 0).astype(int)
    echoes = np.concatenate(([0], real[:-1])) * echo
    return pd.DataFrame(
        {
            "segment": 0,
            "step_id": np.arange(len(tokens)),
            "prefill_requests": real + echoes,
            "prefill_tokens": tokens + echoes,
            "decode_requests": 8 - echoes,
        }
    )


WORK = [7, 0, 0, 9, 5, 0, 4, 0] * 10


def test_echoes_are_counted_as_decodes() -> None:
    steps = summaries(WORK, echo=True)
    assert is_ahead(steps).all()
    own = own_work(steps)
    assert own["prefill_tokens"].tolist() == WORK
    assert own["prefill_requests"].tolist() == [float(n > 0) for n in WORK]
    assert (own["decode_requests"] == 8).all()
    assert mean_chunk(steps) == pytest.approx(np.mean([7, 9, 5, 4]))


def test_echoes_tell_of_the_step_before() -> None:
    steps = summaries(WORK, echo=True)
    before = work_before(steps, chunk_tokens=7.0)
    assert before["prefill_requests"].tolist()[1:] == [float(n > 0) for n in WORK[:-1]]
    assert (before["prefill_tokens"] == 7 * before["prefill_requests"]).all()


def test_nothing_is_concluded_without_evidence() -> None:
    assert not is_ahead(summaries(WORK, echo=False)).any()
    assert not is_ahead(summaries(WORK[:8], echo=True)).any()
    sampled = summaries(WORK, echo=True).iloc[::2]
    assert not follows(sampled).any()
    assert not is_ahead(sampled).any()


def test_segments_are_judged_apart() -> None:
    parts = [summaries(WORK, echo).assign(segment=i) for i, echo in enumerate((True, False))]
    found = is_ahead(pd.concat(parts, ignore_index=True))
    assert found.tolist() == [True] * 80 + [False] * 80
