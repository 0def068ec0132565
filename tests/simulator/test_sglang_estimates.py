"""SGLang's estimate of tokens to come, and whom it retracts: worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from simulator_helpers import Recorder, deployment, load

from pinn.engines.engine_spec import EngineSpec
from pinn.simulator.simulate import simulate


def serve(prompts, outputs, offsets, tokens, **flags):
    """The run and its batches; steps of a second, memory for so many tokens."""
    flags = {"engine_version": "0.5.9", "cudagraph_padding": False, "block_size": 1} | flags
    flags = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 1100} | flags
    spec = EngineSpec(num_gpu_blocks_override=tokens + 1)
    gpu = Recorder()
    target = deployment(engine="sglang", async_scheduling=False, **flags)
    return simulate(target, load(prompts, outputs, offsets), gpu, spec), gpu.batches


@pytest.mark.parametrize(("output", "waits"), [(540, False), (680, True)])
def test_the_expected_share_falls_in_600_decode_steps(output, waits):
    """After 300 of them it is 0.7 - 300 x 0.602 / 600 = 0.399.

    Two requests of 1,000 tokens have 699 and 698 left then, of which 557 are expected, and hold
    605 of 1,800: 638 are left for a third, which 541 fit and 681 do not. Falling in 500 steps the
    share would be 0.339 and 722 left; in 700 steps 0.442 and 578 left.
    """
    run, _ = serve([1, 1, 1], [1000, 1000, output], [0.0, 0.5, 302.5], 1800)
    assert (run.requests.scheduled_s[2] > 310) == waits


@pytest.mark.parametrize(("output", "waits"), [(580, False), (610, True)])
def test_the_expected_share_falls_to_a_seventh_and_no_further(output, waits):
    """From the 600th decode step on it is 0.14 x 0.7 = 0.098.

    After 800 of them two requests of 1,300 tokens have 499 and 498 left, of which 98 are expected,
    and hold 1,605 of 2,300: 597 are left for a third, which 581 fit and 611 do not. Of a share of
    0.14 it would be 555, of 0.07 625.
    """
    run, _ = serve([1, 1, 1], [1300, 1300, output], [0.0, 0.5, 802.5], 2300, max_model_len=1400)
    assert (run.requests.scheduled_s[2] > 810) == waits


@pytest.mark.parametrize(("output", "waits"), [(258, False), (270, True)])
def test_a_retraction_looks_20_steps_ahead(output, waits):
    """The share becomes what is written, and 20 tokens more each, of all outputs.

    Three requests of 200 tokens, one with a prompt of 300, fill 560 tokens after 86 steps. It goes.
    The others hold 175, and are expected to write (87 + 20 + 86 + 20) / 401 of their last 227
    tokens, 121: 264 are left for the fourth, which 259 fit and 271 do not. With 10 steps it would
    be 276, with 30 253.
    """
    flags = {"max_num_batched_tokens": 512, "schedule_conservativeness": 0.1}
    run, _ = serve(
        [1, 1, 300, 1], [200, 200, 200, output], [0.0, 0.5, 1.5, 80.5], 560,
        max_model_len=560, **flags,
    )  # fmt: skip
    np.testing.assert_array_equal(run.requests.preemptions, [0, 0, 1, 0])
    assert (run.requests.scheduled_s[3] > 100) == waits


def test_the_last_of_those_alike_is_retracted():
    """Two come together beside an earlier one and are all short of memory near their end.

    When they come 2 tokens are held and 0.7 x 39 expected, so that 50 and 50 more fit into 133;
    in the end all would hold 41 + 50 + 50.
    """
    run, _ = serve([1, 10, 10], [40, 40, 40], [0.0, 0.5, 0.5], 133, max_model_len=64)
    np.testing.assert_array_equal(run.requests.preemptions, [0, 0, 1])


def test_newer_releases_expect_all_of_an_output():
    """Check admission of two requests of 50 tokens each: 92 tokens are free, 39 still expected."""
    flags = {"engine_version": "0.5.23", "max_model_len": 64}
    run, batches = serve([1, 10, 10], [40, 40, 40], [0.0, 0.5, 0.5], 133, **flags)
    np.testing.assert_array_equal(run.requests.preemptions, [0, 0, 0])
    assert max(map(len, batches)) == 2


@pytest.mark.parametrize(("tokens", "waits"), [(6150, False), (6060, True)])
def test_longer_outputs_are_expected_to_have_4096_tokens(tokens, waits):
    """A prompt of 2,000 tokens holds 2,001 and is expected to write 0.7 x 9 more.

    Of 6,150 tokens 4,143 are left and of 6,060 4,053; a request of 5,000 tokens needs 1 + 4,096.
    """
    flags = {"max_num_batched_tokens": 2048, "max_model_len": 6000}
    run, _ = serve([2000, 1], [10, 5000], [0.0, 0.5], tokens, **flags)
    assert (run.requests.scheduled_s[1] > 5) == waits


@pytest.mark.parametrize("release", ["0.5.12", "0.5.23"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_load_that_the_cache_holds_at_once_is_served_at_once(release, n):
    """Admission keeps tokens free beside those of all requests, which a small load has not."""
    run, _ = serve([16] * n, [4] * n, [0.0] * n, 200, engine_version=release)
    assert run.requests.finish_s.tolist() == [4.0] * n
