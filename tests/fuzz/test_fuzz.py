"""Any input is read or refused in one line, soon, in little memory: never a traceback.

``PINN_FUZZ_SECONDS=3600 pytest tests/fuzz`` (``make fuzz``) tries inputs for that long, on as many
processes as pytest has; each kind of input gets an equal share of the time.
"""

import os
import resource
import signal
import time
import warnings
from pathlib import Path

import hypothesis
import pytest
from fuzz.targets import TARGETS

from pinn.errors import PinnError

#: In the whole suite: a fixed set of inputs. For longer: rounds with other seeds.
SECONDS = float(os.environ.get("PINN_FUZZ_SECONDS", "0"))
QUICK_EXAMPLES, ROUND_EXAMPLES = 30, 400
MOST_SECONDS, MOST_BYTES = 10.0, 2**30


class Tried:
    """Counts inputs, and holds each to the limits of time and memory."""

    def __init__(self):
        self.accepted = self.refused = 0

    def __call__(self, check, shared, given):
        began, held = time.process_time(), new_peak()
        signal.setitimer(signal.ITIMER_REAL, 30 * MOST_SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(shared, given)
        except PinnError as error:
            said = str(error)
            self.refused += 1
        else:
            said = ""
            self.accepted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert said.isprintable()  # one line, no control characters
        assert len(said) < 3000
        assert time.process_time() - began < MOST_SECONDS
        assert memory_bytes("VmHWM") - held < MOST_BYTES


def memory_bytes(name):
    """An entry of what the kernel says of this process; ``VmHWM`` is the peak of resident pages."""
    entries = Path("/proc/self/status").read_text()
    return 1024 * int(entries.split(f"{name}:")[1].split()[0])


def new_peak():
    """Let the peak be what is resident now, and say how much that is."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_bytes("VmRSS")


@pytest.fixture
def bounded_memory():
    """Code that takes far more memory than the limit fails, and does not stop the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = memory_bytes("VmSize") + 3 * MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.usefixtures("bounded_memory")
def test_inputs(fuzzed, name, record_property):
    target, tried = TARGETS[name], Tried()
    inputs = target.inputs(fuzzed)
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    end = time.monotonic() + SECONDS * processes / len(TARGETS)
    seed = int(os.environ.get("PINN_FUZZ_SEED", "0"))
    while True:

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=ROUND_EXAMPLES if SECONDS else QUICK_EXAMPLES,
            derandomize=not SECONDS,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(inputs)
        def run(given):
            tried(target.check, fuzzed, given)

        run()
        seed += 1
        if time.monotonic() >= end:
            break
    record_property("tried", (name, tried.accepted, tried.refused))
    assert bool(tried.refused) == target.refuses  # inputs that nothing refuses try nothing
    assert tried.accepted
