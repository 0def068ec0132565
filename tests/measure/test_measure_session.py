"""Batches are made as wanted and repeated until they are known; what was measured stays."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from assumed_priors import prior_coefficients
from measured_folder import measured
from simulated_engine import SimulatedEngine

from pinn.calibration.measuring import deployment_limits
from pinn.measurements.program.batches import Wanted, fits, own_order, read_batch, short_list
from pinn.measurements.program.session import COLD, KNOWN, LEAST, Session, measure_all
from pinn.measurements.program.table import COLUMNS, Table
from pinn.measurements.traces.measured_steps import read_measured_steps
from pinn.measurements.traces.step_table import COUNTS

BETA = prior_coefficients(1).beta[0]
BATCHES = [Wanted(4, 500), Wanted(4, 500, 1, 256), Wanted(2, 500), Wanted(0, 0, 2, 128),
           Wanted(0, 0, 1, 64, 1024), Wanted(8, 2000)]  # fmt: skip


@pytest.mark.parametrize("batch", BATCHES)
def test_a_batch_reads_as_it_is_written(batch):
    assert read_batch(str(batch)) == batch


def test_every_batch_is_made_as_wanted(llama_8b_h100, tmp_path):
    found = measured(tmp_path / "steps", llama_8b_h100, BETA, BATCHES)
    assert found.ended == "all batches are measured"
    assert found.batches == found.known == len(BATCHES)
    assert found.cold == COLD * len(BATCHES)
    steps = read_measured_steps(tmp_path / "steps")
    rows = steps.rows[list(COUNTS)].to_numpy()
    wanted = [[b.prompts, b.prompts * b.tokens, b.prompts * b.cached, b.decodes] for b in BATCHES]
    np.testing.assert_array_equal(rows[:, :4], wanted)
    context = np.array([b.context for b in BATCHES])
    near = rows[:, 4] / np.maximum(rows[:, 3], 1) - context
    assert (near >= 0).all()
    assert (near <= np.maximum(0.1 * context, 64) + 2 * LEAST).all()
    assert (steps.error <= KNOWN).all()


def test_noisy_steps_are_repeated_more(llama_8b_h100, tmp_path):
    calm, noisy = (
        measured(tmp_path / str(noise), llama_8b_h100, BETA, BATCHES[:1], noise=noise).steps
        for noise in (0.001, 0.05)
    )
    assert calm == LEAST
    assert noisy > 2 * LEAST


def test_a_batch_that_does_not_fit_is_passed_over(llama_8b_h100, tmp_path):
    limits = deployment_limits(llama_8b_h100)
    too_many = Wanted(limits.max_num_seqs + 1, 10)
    assert not fits(too_many, limits)
    assert measured(tmp_path / "s", llama_8b_h100, BETA, [too_many, BATCHES[0]]).batches == 1


@pytest.mark.parametrize(
    "limits",
    [{}, {"max_num_seqs": 4, "budget": 512, "longest": 600, "cache": 2048, "shares": False}],
    ids=["H100", "small"],
)
def test_what_comes_first_fits(llama_8b_h100, limits):
    given = deployment_limits(llama_8b_h100)._replace(**limits)
    first, then = short_list(given), list(own_order(given))
    assert len(first) >= 5
    assert all(fits(batch, given) for batch in [*first, *then])
    assert len(set(first)) == len(first)


class CrashingEngine:
    """Fails in its n-th prompt of a size."""

    def __init__(self, engine, error):
        self._engine, self._error = engine, error

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def step(self):
        found = self._engine.step()
        if any(step.prompts == 2 for step in found):
            raise self._error
        return found


def test_what_was_measured_stays_when_the_engine_crashes(llama_8b_h100, tmp_path):
    batches = [BATCHES[0], BATCHES[1], BATCHES[3], BATCHES[5]]
    found = measured(
        tmp_path / "steps", llama_8b_h100, BETA, batches,
        wrap=lambda engine: CrashingEngine(engine, RuntimeError("illegal memory access")),
    )  # fmt: skip
    assert "illegal memory access" in found.ended
    assert "2 prefill 128 @ 0" in found.ended
    assert found.batches == len(read_measured_steps(tmp_path / "steps")) == 2


def test_what_was_measured_stays_when_the_disk_is_full(llama_8b_h100, tmp_path):
    limits = deployment_limits(llama_8b_h100)
    table = Table(str(tmp_path / "steps"), {})
    whole, table._file = table._file, None

    class Full:
        """Takes so many characters."""

        left = 3000

        def write(self, text):
            whole.write(text[: self.left])
            self.left -= len(text)
            if self.left < 0:
                whole.flush()
                raise OSError(28, "No space left on device")

        def __getattr__(self, name):
            return getattr(whole, name)

    table._file = Full()
    session = Session(SimulatedEngine(llama_8b_h100, BETA, limits), 60.0)
    found = measure_all(session, BATCHES, table, lambda _: None)
    table.close()
    assert "No space left" in found.ended
    steps = read_measured_steps(tmp_path / "steps")
    assert len(steps) >= 2
    refused = steps.report.refused
    assert refused["a cell is missing or not a number"] == 1


def test_it_ends_at_its_time_and_when_asked(llama_8b_h100, tmp_path):
    limits = deployment_limits(llama_8b_h100)
    found = measured(tmp_path / "timed", llama_8b_h100, BETA, own_order(limits), seconds=3.0)
    assert found.ended == "the time of --minutes is over"
    engine = SimulatedEngine(llama_8b_h100, BETA, limits)
    session = Session(engine, 60.0, lambda: engine.clock() > 1.0)
    asked = measure_all(session, own_order(limits), Table(str(tmp_path / "a"), {}), lambda _: None)
    assert asked.ended == "the program was asked to stop"
    assert 1.0 < engine.clock() < 2.0
    assert asked.batches


def test_stalls_of_the_host_are_counted(llama_8b_h100, tmp_path):
    class Stalling(CrashingEngine):
        count = 0

        def step(self):
            type(self).count += 1
            slow = 10.0 if self.count % 7 == 0 else 1.0
            return [step._replace(latency=slow * step.latency) for step in self._engine.step()]

    found = measured(
        tmp_path / "s", llama_8b_h100, BETA, BATCHES[:3], wrap=lambda e: Stalling(e, ValueError())
    )
    assert found.stalls >= 3
    assert 9 < found.worst < 11


ENDLESS = """
import sys
sys.path.insert(0, {root!r})
from pinn.measurements.program.batches import Limits
from pinn.measurements.program.command import main
from pinn.measurements.program.table import Step

class Engine:
    limits, facts, now = Limits(64, 2048, 4096, 100000), {{}}, 0.0
    held = {{}}
    def __init__(self, arguments): self.new = []
    def clock(self): return self.now
    def submit(self, prompt, outputs):
        name = str(len(self.held) + self.now)
        (self.held.__setitem__(name, len(prompt)) if outputs > 1 else self.new.append(len(prompt)))
        return name
    def drop(self, names=None):
        for name in list(self.held) if names is None else names: self.held.pop(name, None)
    def step(self):
        self.now += 0.001
        new, self.new = self.new, []
        return [Step(self.now, 0.001, 0.001, len(new), sum(new), 0, 0.0,
                     len(self.held), sum(self.held.values()), 0.0)]
    def close(self): pass

sys.exit(main(["--model", "m", "--out", {out!r}, "--minutes", "1000"], Engine))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_was_measured_stays_when_the_program_is_ended(tmp_path, number):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    text = ENDLESS.format(root=root, out=str(tmp_path / "steps"))
    program = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    seen = 0
    while seen < 2:
        seen += " ms +- " in program.stdout.readline()
    program.send_signal(number)
    said, failed = program.communicate(timeout=60)
    steps = read_measured_steps(tmp_path / "steps")
    assert len(steps) >= 2
    header = (tmp_path / "steps" / "steps.csv").read_text().splitlines()[0]
    assert header.split(",") == list(COLUMNS)
    if number != signal.SIGKILL:
        assert program.returncode == 0, failed
        assert "asked to stop" in said or "all batches are measured" in said
