"""Images in a simulated load: the step of an image's first token encodes it, for everybody."""

from dataclasses import replace

import numpy as np
import pytest
from simulator_helpers import DENSE, GPU

from pinn.engines.deployment import Deployment
from pinn.simulator.intervals import scaled
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.load import LoadFlags
from pinn.specs.media import MediaItem
from pinn.specs.request_media import IMAGE, RequestMedia
from pinn.specs.serving import ServingSpec
from pinn.surrogate.encoder_time import EncoderTime
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

IMAGES = RequestMedia(IMAGE, 3, "32x32", MediaItem(100, 100, 400, 400), first_token=20)
ENCODER = EncoderTime(IMAGES, first_s=4.0, further_s=3.0, floor_s=1.0)
LOAD = LoadFlags(input_len=80, output_len=4, concurrency=4, num_prompts=6, prefix_len=20)


def served(encoder, budget, compiled=False, requests=1):
    """Serve requests of 20 shared tokens, 300 of images and 80 others; a step takes a second."""
    flags = replace(LOAD, num_prompts=requests)
    one = Deployment(DENSE, GPU, ServingSpec(max_num_batched_tokens=budget, max_num_seqs=8))
    beta = np.array([float(name == "step") for name in STEP_FEATURES])
    latency = LinearLatency(one, beta, np.zeros(len(REQUEST_FEATURES)), encoder)
    workload = flags.draw(None, 0, IMAGES.prompt_tokens)
    return simulate(one, workload, latency, compiled=compiled)


def test_one_step_encodes_all_images_of_a_whole_prompt():
    run = served(ENCODER, 512)
    assert run.steps["duration_s"].tolist() == pytest.approx([1 + 4 + 3 + 3, 1, 1, 1])
    assert run.requests.ttft_s[0] == pytest.approx(11)


def test_a_chunk_encodes_the_images_that_begin_in_it():
    # Images begin at tokens 20, 120 and 220; chunks have 128 tokens.
    run = served(ENCODER, 128)
    of_chunks = [1 + 4 + 3, 1 + 4, 1, 1]
    assert run.steps["duration_s"].tolist() == pytest.approx([*of_chunks, 1, 1, 1])


def test_the_whole_batch_waits_for_an_encoder():
    alone, together = served(ENCODER, 2048), served(ENCODER, 2048, requests=4)
    first = together.steps["duration_s"][0]
    assert first == pytest.approx(1 + 4 + 11 * 3)
    assert (together.requests.ttft_s > alone.requests.ttft_s[0]).all()


def test_without_an_encoder_nothing_changes():
    assert served(None, 512).steps["duration_s"].tolist() == [1.0] * 4


def test_compiled_and_plain_runs_agree():
    for budget in (100, 128, 512):
        runs = [served(ENCODER, budget, compiled, 6) for compiled in (True, False)]
        steps, plain = (run.steps["duration_s"] for run in runs)
        np.testing.assert_allclose(steps, plain, rtol=1e-12)
        np.testing.assert_allclose(*(run.requests.ttft_s for run in runs), rtol=1e-12)


def test_an_unmeasured_encoder_widens_the_interval_alone():
    latency = LinearLatency(
        Deployment(DENSE, GPU, ServingSpec()), np.ones(len(STEP_FEATURES)), np.ones(1), ENCODER
    )
    slow = scaled(latency, 0.3, 0.0, 0.4)
    assert slow.beta[0] == pytest.approx(np.exp(0.3))
    assert slow.encoder.first_s == pytest.approx(4 * np.exp(0.5))
    assert scaled(latency, -0.3, 0.0, 0.4).encoder.first_s == pytest.approx(4 * np.exp(-0.5))
    assert scaled(latency, 0.0, 0.0).encoder == ENCODER
