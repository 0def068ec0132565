"""Independent tasks, run one after another, in processes on this machine, or on a Ray cluster."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from pinn.errors import PinnError

Task = TypeVar("Task")
Result = TypeVar("Result")

BACKENDS = ("processes", "ray")
#: A second SIGTERM within this time in seconds counts as the same signal, sent to both the process
#: and its group.
_SAME_SIGNAL_S = 1.0


@dataclass(frozen=True)
class Workers:
    """Processes on this machine or a Ray cluster that run independent tasks.

    Attributes:
        backend: ``processes`` (on this machine) or ``ray``.
        count: Number of concurrent tasks. With ``processes``, 1 runs tasks in this process, one
            after another. A running Ray cluster determines the number itself.
        address: Address of a running Ray cluster, whose machines have the working directory under
            the same path. None starts Ray on this machine.
        torch: Whether tasks use torch. If so, each task runs on one thread, as it would in this
            process.
        pool: Running processes to reuse; None starts new ones for every run.
    """

    backend: str = "processes"
    count: int = 1
    address: str | None = None
    torch: bool = True
    pool: Executor | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise PinnError(f"unknown backend {self.backend!r}: give one of {known}")
        if self.count < 1:
            raise PinnError(f"the number of workers must be at least 1, got {self.count}")

    @contextmanager
    def kept(self, *modules: str) -> Iterator[Workers]:
        """Yield workers whose processes are started once and reused for several runs.

        Args:
            modules: Modules that tasks import; the new processes import them in the background.
        """
        if self.backend == "ray":
            with self._ray():
                yield self
            return
        if self.count == 1:
            yield self
            return
        with self._started() as pool:
            for module in modules * self.count:
                pool.submit(import_module, module)
            yield replace(self, pool=pool)

    def run(
        self, work: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, Result]]:
        """Yield the index and result of every task, in the order in which tasks finish.

        Args:
            work: Function that runs one task; it must be importable from other processes.
            tasks: Arguments of ``work``; tasks and results are pickled.

        Raises:
            PinnError: If Ray is requested but not installed, or its machines do not have the
                working directory.
            Exception: Any error that a task raised, unchanged.
        """
        if self.backend == "ray":
            yield from self._on_ray(work, tasks)
            return
        if self.count == 1:
            yield from ((i, work(task)) for i, task in enumerate(tasks))
            return
        with self._started() if self.pool is None else nullcontext(self.pool) as pool:
            index = {pool.submit(_one, self.torch, work, task): i for i, task in enumerate(tasks)}
            for done in as_completed(index):
                yield index[done], done.result()

    @contextmanager
    def _started(self) -> Iterator[ProcessPoolExecutor]:
        """Yield a pool whose processes end with the body or with this process."""
        pool = new_pool(self.count)
        try:
            yield pool
        except Exception:
            pool.shutdown(cancel_futures=True)
            raise
        except BaseException:  # an interrupt or an abandoned iterator: do not wait for tasks
            end_pool(pool)
            raise
        pool.shutdown()

    def stop(self) -> None:
        """End the processes that :meth:`kept` started, without waiting for their tasks."""
        if isinstance(self.pool, ProcessPoolExecutor):
            end_pool(self.pool)

    def _on_ray(
        self, work: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, Result]]:
        with self._ray() as ray:
            start: Callable[..., object] = ray.remote(num_cpus=1)(_in_folder).remote
            here = Path.cwd()
            index = {start(here, self.torch, work, task): i for i, task in enumerate(tasks)}
            waiting = list(index)
            try:
                while waiting:
                    done, waiting = ray.wait(waiting)
                    for reference in done:
                        try:
                            result = ray.get(reference)
                        except ray.exceptions.RayTaskError as error:
                            # Raise the task's own error instead of Ray's report of the error.
                            raise error.cause from error
                        yield index[reference], result
            except BaseException:  # otherwise tasks would continue on a running cluster
                for reference in waiting:
                    ray.cancel(reference)
                raise

    @contextmanager
    def _ray(self) -> Iterator[Any]:
        """Yield the Ray module while Ray runs; Ray is shut down only if this call started it."""
        try:
            import ray
        except ImportError as error:
            raise PinnError("--backend ray needs the package Ray: run 'pip install ray'") from error
        own = not ray.is_initialized()
        if own and self.address is not None:
            ray.init(address=self.address, log_to_driver=False)
        elif own:
            # Without "local", Ray would connect to an instance that is already running on this
            # machine.
            ray.init("local", num_cpus=self.count, include_dashboard=False, log_to_driver=False)
        try:
            yield ray
        finally:
            if own:
                ray.shutdown()


@contextmanager
def stopping_at_once(kept: str) -> Iterator[None]:
    """Make SIGINT and SIGTERM print a message and end the process with status 128 + signal.

    Only the main thread may handle signals. In other threads the handlers do not change.

    Args:
        kept: Message that states which results are kept; it begins with a lower-case letter.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        os.write(2, f"stopping: {kept}\n".encode())
        raise SystemExit(128 + number)

    with on_signals(stop):
        yield


@contextmanager
def on_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM with a function while the body runs, then restore the handlers."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def interrupted_once(said: str) -> Iterator[list[int]]:
    """Make the first SIGINT or SIGTERM raise ``KeyboardInterrupt``, and the second end the process.

    Only the main thread may handle signals. In other threads the handlers do not change. The
    command ``timeout`` sends its signal to the process and then to the process's group: a SIGTERM
    that immediately follows another is therefore treated as the same signal.

    Args:
        said: Sentence that is printed to stderr at the first signal.

    Yields:
        List of the signals received so far.
    """
    came: list[int] = []
    last_s = -math.inf
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal last_s
        before_s, last_s = last_s, time.monotonic()
        if came[-1:] == [number] == [signal.SIGTERM] and last_s - before_s < _SAME_SIGNAL_S:
            return
        came.append(number)
        if len(came) > 1:
            raise SystemExit(128 + number)
        os.write(2, f"stopping: {said}\n".encode())
        raise KeyboardInterrupt

    with on_signals(stop):
        try:
            yield came
        except KeyboardInterrupt:
            raise SystemExit(128 + (came or [signal.SIGINT])[0]) from None


def new_pool(count: int) -> ProcessPoolExecutor:
    """Return a pool of processes that end with this process; each is started by its first task."""
    # Processes are spawned, because torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent)


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool without waiting for their tasks."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    # Wait until the pool's thread has noticed that its processes have ended. A thread that is still
    # running could close its pipe while the exiting interpreter writes to it.
    pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Make a pool's process end when its parent process ends, for whatever reason.

    A terminal sends its interrupt to the whole process group, and the command ``timeout`` its
    signal. The parent decides how to react, so the pool's process gets a separate group.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    parent = multiprocessing.parent_process()
    assert parent is not None, "a process of a pool"

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _in_folder(
    folder: Path, uses_torch: bool, work: Callable[[Task], Result], task: Task
) -> Result:
    """Run one task in a given folder; Ray would run it in the folder where Ray was started."""
    if not folder.is_dir():
        machine = os.uname().nodename
        raise PinnError(
            f"Ray's machine {machine} has no folder {folder}, in which pinn was started: share the "
            "folder between the machines under the same path"
        )
    os.chdir(folder)
    return _one(uses_torch, work, task)


def _one(uses_torch: bool, work: Callable[[Task], Result], task: Task) -> Result:
    """Run one task; a task that uses torch runs on one thread, with deterministic algorithms."""
    if uses_torch:
        import torch

        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
    return work(task)
