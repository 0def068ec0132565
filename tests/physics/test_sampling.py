"""The sampler: bytes per logit by hand, and times compared with measurements."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from fit_sampler import TIMED, fit
from hypothesis import given
from strategies import samplings

from pinn.physics import cost_facts as sampling
from pinn.physics.cost_facts import sampler_kernels, sampler_time
from pinn.specs.gpu import load_gpu
from pinn.specs.model import Sampling


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # bf16 to fp32 (2 + 4), largest (4).
        ({"temperature": 0}, 10),
        # And temperature (8), softmax (8), noise (4), division by it (12).
        ({}, 42),
        # And five reads by topk (20), comparison (5) and mask (9).
        ({"top_k": 20}, 42 + 34),
        # And the sort: numbers (8), histogram (4), four passes over 12 bytes (96), the pairs once
        # more (24), their values and indices (24); softmax (8), sum (8), mask (14), copy (8),
        # scatter (16).
        ({"top_p": 0.9}, 42 + 156 + 54),
        ({"top_p": 0.9, "top_k": 20}, 42 + 156 + 54 + 14),
        # Softmax (8), its largest (4), mask (14).
        ({"min_p": 0.1}, 42 + 26),
        # Two counts (34), the repetition kernel (2), frequency (24) and presence (17).
        ({"repetition_penalty": 1.05, "temperature": 0}, 10 + 77),
    ],
)
def test_bytes_by_hand(settings, expected):
    assert sum(k.logit_bytes for k in sampler_kernels(Sampling(**settings))) == expected


@given(samplings())
def test_greedy_costs_least_and_every_setting_costs_more(asked):
    bare = replace(asked, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
    assert seconds(Sampling(temperature=0)) <= seconds(bare) <= seconds(asked)
    assert seconds(replace(asked, temperature=0)) < seconds(replace(asked, temperature=1))


def seconds(sampling, requests=16, vocabulary=128_256):
    time = sampler_time(sampling)
    moved_s = time.timed_bytes / load_gpu("H100").memory_bandwidth_bytes_per_s
    return time.launch_s + vocabulary * (time.logit_s + requests * moved_s)


SETTINGS = {
    "top-p": {"top_p": 0.8},
    "top-k": {"top_k": 20},
    "min-p": {"min_p": 0.05},
    "penalties": {"repetition_penalty": 1.05},
}


def test_settings_take_as_long_as_they_were_timed():
    timed, found = pd.read_csv(TIMED), []
    for row in timed.itertuples():
        asked = {"temperature": 0.0} if row.settings == "greedy" else {}
        for name in row.settings.split():
            asked |= SETTINGS.get(name, {})
        found.append(seconds(Sampling(**asked), row.requests, row.vocabulary))
    error = np.abs(np.array(found) / timed["seconds"].to_numpy() - 1)
    assert len(timed) == 240
    assert error.mean() < 0.12
    # Where sampling is long enough to matter in a step, the error is smaller.
    assert error[timed["seconds"] > 5e-4].max() < 0.25


def test_constants_are_those_of_the_fit():
    constants, _ = fit(pd.read_csv(TIMED))
    for name, row in constants.iterrows():
        kernels = getattr(sampling, name)
        assert kernels.slowdown == pytest.approx(row.slowdown, rel=0.05)
        assert kernels.launch_s == pytest.approx(row.launch_s, rel=0.15)
        assert kernels.logit_s == pytest.approx(row.logit_s, rel=0.15, abs=1e-12)
