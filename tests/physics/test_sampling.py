"""Bytes per logit, counted by hand from the operators of vLLM's sampler."""

from dataclasses import replace

import pytest
from hypothesis import given
from strategies import samplings

from pinn.physics.sampling import sampler_kernels, sampler_time
from pinn.specs.sampling import Sampling

TIMED = Path(__file__).parents[2] / "data/kernels/sampler_h100_sxm.csv"
H100_BYTES_PER_S = 3.35e12

KINDS = {name: Sampling(**settings) for name, settings in TIMED_SETTINGS.items()}


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
def test_greedy_costs_least_and_every_setting_costs_more(sampling):
    bare = replace(sampling, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
    assert seconds(Sampling(temperature=0)) <= seconds(bare) <= seconds(sampling)
    assert seconds(replace(sampling, temperature=0)) < seconds(replace(sampling, temperature=1))


def seconds(sampling, requests=16, vocabulary=128_256):
    time = sampler_time(sampling)
    each = time.logit_s + requests * time.timed_bytes / H100_BYTES_PER_S
    return time.launch_s + vocabulary * each


def test_settings_take_about_as_long_as_they_were_timed():
    timed = pd.read_csv(TIMED)
    found = [
        seconds(KINDS[row.settings], row.requests, row.vocabulary) for row in timed.itertuples()
    ]
    error = np.abs(np.array(found) / timed["seconds"].to_numpy() - 1)
    assert len(timed) == 180
    assert error.mean() < 0.12
    # Where sampling is a part of a step that one would see, it is closer.
    assert error[timed["seconds"] > 5e-4].max() < 0.35
