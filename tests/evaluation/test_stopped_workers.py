"""Workers end with the process that started them, however that ends, and close its pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import worker_tasks
from worker_tasks import PATIENCE_S

from pinn.common import workers
from pinn.common.workers import Workers, interrupted_once

_CODE = """
import sys, time
from concurrent.futures import process
from contextlib import suppress
from pathlib import Path
import worker_tasks
from pinn.common.workers import Workers, stopping_at_once
def wakeup(self):  # as the library's, with time for its pipe to be closed between the two steps
    if not self._closed:
        time.sleep(0.3)
        self._writer.send_bytes(b"")
process._ThreadWakeup.wakeup = wakeup
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with stopping_at_once("one thing is kept"), Workers(count=2, torch=False).kept() as kept:
        list(kept.run(worker_tasks.sleep_on, [folder] * 2))
"""


def started(folder):
    """Start a process with two workers at work, and return it with their ids."""
    script = folder / "script.py"
    script.write_text(_CODE)
    path = os.pathsep.join([str(Path(worker_tasks.__file__).parent), *sys.path])
    met = folder / "met"
    met.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), str(met)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    until = time.monotonic() + PATIENCE_S
    while len(list(met.iterdir())) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "no two workers at work"
        time.sleep(0.01)
    return process, [int(each.name) for each in met.iterdir()]


def has_ended(pid):
    """Return whether a process is gone, or dead and not yet waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
@pytest.mark.parametrize(
    ("number", "status", "says"),
    [
        (signal.SIGINT, 128 + signal.SIGINT, "stopping: one thing is kept\n"),
        (signal.SIGTERM, 128 + signal.SIGTERM, "stopping: one thing is kept\n"),
        (signal.SIGKILL, -signal.SIGKILL, None),  # a killed process prints nothing
    ],
)
def test_workers_end_with_their_parent(tmp_path, number, status, says):
    process, workers = started(tmp_path)
    sent = time.monotonic()
    process.send_signal(number)
    if says is not None:
        assert process.stderr.readline() == says
        assert time.monotonic() - sent < 2
        says = ""
    # communicate() returns when no process has the pipes open; a worker sleeps for minutes.
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status
    assert says in (said, None)
    until = time.monotonic() + PATIENCE_S
    while not all(map(has_ended, workers)):
        assert time.monotonic() < until, "a worker goes on"
        time.sleep(0.01)


_EVALUATE = ("-m", "pinn.cli.main", "evaluate", "--fast", "--set")
_TRAIN = (str(Path(__file__).parents[2] / "train.py"), "output_dir=kept")


@pytest.mark.parametrize("words", [_EVALUATE, _TRAIN], ids=("evaluate", "train"))
def test_long_commands_say_what_is_kept(tmp_path, words):
    here = tmp_path / "here"
    here.mkdir()
    path = os.pathsep.join([str(Path(worker_tasks.__file__).parent), *sys.path])
    process = subprocess.run(
        [sys.executable, *words, "entry=worker_tasks.interrupt"],
        capture_output=True,
        text=True,
        check=False,
        cwd=here,
        env={**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert process.returncode == 128 + signal.SIGINT, process.stderr
    assert "stopping: " in process.stderr
    # A look (evaluate --fast) writes nothing into the working directory.
    assert words is _TRAIN or list(here.iterdir()) == []


def test_a_first_signal_interrupts_and_a_second_ends(capfd):
    with interrupted_once("the best so far follows") as came:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM]
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 128 + signal.SIGINT
    assert capfd.readouterr().err == "stopping: the best so far follows\n"


def test_a_sigterm_to_the_process_and_at_once_to_its_group_is_one(monkeypatch):
    """``timeout`` of coreutils sends both."""
    now = iter([0.0, 0.01, 5.0])
    monkeypatch.setattr(workers.time, "monotonic", lambda: next(now))
    with interrupted_once("the best so far follows") as came:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM]
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_a_signal_to_the_group_leaves_workers_to_their_parent(tmp_path):
    process, found = started(tmp_path)
    assert all(os.getpgid(each) == each for each in found)
    process.kill()
    process.communicate(timeout=PATIENCE_S)


def test_an_interrupt_that_nothing_handles_ends_with_its_status():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended, interrupted_once("nothing follows"):
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is before


def test_kept_workers_stop_without_waiting_for_their_tasks(tmp_path):
    begin = time.monotonic()
    with Workers(count=2, torch=False).kept() as kept, suppress(KeyboardInterrupt):
        met = tmp_path / "met"
        met.mkdir()
        kept.pool.submit(worker_tasks.sleep_on, met)
        while not list(met.iterdir()):
            assert time.monotonic() - begin < PATIENCE_S
            time.sleep(0.01)
        kept.stop()
    (pid,) = (int(each.name) for each in met.iterdir())
    assert has_ended(pid)
