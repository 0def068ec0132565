"""Processes that compute responses, and the queue of requests waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from pinn.common.workers import end_pool, new_pool

Result = TypeVar("Result")

#: Grace period in seconds in which a worker process may finish after its client has disconnected.
GRACE_S = 1.0


class QueueFullError(Exception):
    """Error for a request that arrives while too many others wait for a free worker process."""


class TooSlowError(Exception):
    """Error for a request whose response takes longer than the service's timeout."""


class ProcessEndedError(Exception):
    """Error for a request whose worker process ended, for example because it ran out of memory."""


class Lane:
    """Group of processes, each of which computes the response to one HTTP request at a time.

    A process starts with its first request. It is terminated and replaced if a response takes too
    long or if the client disconnects.

    Attributes:
        running: Number of responses being computed.
        waiting: Number of requests waiting for a free process.
    """

    def __init__(self, processes: int, most_waiting: int, timeout_s: float) -> None:
        self.running = 0
        self.waiting = 0
        self._most_waiting = most_waiting
        self._timeout_s = timeout_s
        self._pools = [new_pool(1) for _ in range(processes)]
        self._free: asyncio.LifoQueue[ProcessPoolExecutor] = asyncio.LifoQueue()
        self._ending: set[asyncio.Task[None]] = set()
        for pool in self._pools:
            self._free.put_nowait(pool)

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run a module-level function in one of the processes, and return its result.

        Raises:
            QueueFullError: If too many requests wait, or if this request waited too long.
            TooSlowError: If the response takes longer than the timeout.
            ProcessEndedError: If the process ends.
            asyncio.CancelledError: If the caller cancels the call, which terminates the process.
        """
        pool = await self._next_pool()
        answer = asyncio.wrap_future(pool.submit(work, *arguments))
        self.running += 1
        try:
            return await asyncio.wait_for(asyncio.shield(answer), self._timeout_s)
        except TimeoutError:
            raise TooSlowError from None
        except BrokenProcessPool:
            raise ProcessEndedError from None
        finally:
            task = asyncio.create_task(self._give_back(pool, answer))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _next_pool(self) -> ProcessPoolExecutor:
        if self.waiting >= self._most_waiting and self._free.empty():
            raise QueueFullError
        self.waiting += 1
        try:
            return await asyncio.wait_for(self._free.get(), self._timeout_s)
        except TimeoutError:
            raise QueueFullError from None
        finally:
            self.waiting -= 1

    async def _give_back(self, pool: ProcessPoolExecutor, answer: asyncio.Future[Result]) -> None:
        """Mark a process as free, or replace the process if it is still computing."""
        await asyncio.wait([answer], timeout=GRACE_S)
        answer.add_done_callback(_is_broken)  # retrieve a later exception, else asyncio logs it
        if not answer.done() or _is_broken(answer):
            end_pool(pool)
            self._pools.remove(pool)
            pool = new_pool(1)
            self._pools.append(pool)
        self.running -= 1
        self._free.put_nowait(pool)

    async def warm_up(self, work: Callable[[], object]) -> None:
        """Run a function once in every process."""
        await asyncio.gather(*(self.run(work) for _ in self._pools), return_exceptions=True)

    def close(self) -> None:
        """Terminate all processes of this group."""
        for pool in self._pools:
            end_pool(pool)


def _is_broken(answer: asyncio.Future[Result]) -> bool:
    """Return whether the process ended before it finished computing the response."""
    return answer.cancelled() or isinstance(answer.exception(), BrokenProcessPool)
