"""Without asynchronous scheduling the GPU waits for the host between two steps."""

import numpy as np
import pytest

import pinn
from pinn.engines.configurations import canonical, make_deployment
from pinn.physics.costs import step_costs
from pinn.physics.step_values import HIDDEN_REQUEST, HIDDEN_STEP

SERVER = {"model": "Qwen/Qwen3-32B", "gpu": "H100", "tensor_parallel_size": 4}


def waits(**flags) -> bool:
    return bool(step_costs([make_deployment(canonical(SERVER | flags))]).waits_for_host[0])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"engine_version": "0.13.0"}, True),  # the first release with it by default is 0.14.0
        ({"engine_version": "0.14.0"}, False),
        ({"engine_version": "0.13.0", "async_scheduling": True}, False),
        ({"engine_version": "0.19.0", "async_scheduling": False}, True),
        # Other batches run meanwhile.
        ({"engine_version": "0.13.0", "pipeline_parallel_size": 2}, False),
        # The host's work was timed in vLLM's code only.
        ({"engine": "sglang", "async_scheduling": False}, False),
    ],
)
def test_which_servers_wait(flags, expected):
    assert waits(**flags) is expected


@pytest.mark.parametrize("batch", ["1 decode @ 700", "64 decode @ 700", "1 prefill 512 @ 0"])
def test_the_wait_is_the_hosts_work_on_the_step_and_its_requests(batch):
    ahead, waiting = (
        pinn.predict(**SERVER, async_scheduling=is_async) for is_async in (True, False)
    )
    requests = int(batch.split()[0])
    expected = HIDDEN_STEP * ahead.beta["step"] + HIDDEN_REQUEST * ahead.beta["request"] * requests
    found = waiting.step_time(batch) - ahead.step_time(batch)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
