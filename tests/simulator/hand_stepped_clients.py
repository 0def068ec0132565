"""Clients, one API server and one engine stepped by hand: nothing of the simulator's is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def serve_by_hand(
    outputs: Sequence[int],
    clients: int,
    seats: int,
    depth: int,
    step_s: Callable[[int], float],
    work_s: float,
    token_s: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each client takes the next request of one line when its last one has ended.

    Prompts fit into one step. The engine plans up to ``depth`` batches ahead, at the end of each
    step, of at most ``seats`` requests.

    Returns:
        When each request was sent, and when its client saw its first and its last token.
    """
    n = len(outputs)
    sent, first, last = np.full((3, n), np.nan)
    client_free = [0.0] * clients  # infinite while the client waits for an answer
    of_client: dict[int, int] = {}
    inbox: list[tuple[float, int]] = []
    waiting: list[int] = []
    running: list[int] = []
    planned, made = [0] * n, [0] * n
    batches: list[tuple[float, list[int]]] = []  # end, requests
    server_free = gpu_free = now = 0.0
    line = 0

    def send_until(moment: float) -> None:
        nonlocal line, server_free
        while line < n and min(client_free) <= moment:
            client = int(np.argmin(client_free))
            sent[line] = client_free[client]
            client_free[client] = np.inf
            of_client[line] = client
            server_free = max(server_free, sent[line]) + work_s
            inbox.append((server_free, line))
            line += 1

    def plan() -> list[int]:
        while waiting and len(running) < seats:
            running.append(waiting.pop(0))
        return [r for r in running if planned[r] < outputs[r]]

    while np.isnan(last).any():
        if batches:
            now, batch = batches[0][0], batches[0][1]
            send_until(now)
            batches.pop(0)
            for r in batch:
                server_free = max(server_free, now) + token_s
                made[r] += 1
                if made[r] == 1:
                    first[r] = server_free
                if made[r] == outputs[r]:
                    last[r] = server_free
                    client_free[of_client[r]] = server_free
                    running.remove(r)
        else:
            if not inbox:
                send_until(min(client_free))
            now = max(now, inbox[0][0])
            send_until(now)
        while inbox and inbox[0][0] <= now:
            waiting.append(inbox.pop(0)[1])
        while len(batches) < depth and (batch := plan()):
            for r in batch:
                planned[r] += 1
            begin = max(now, gpu_free)
            gpu_free = begin + step_s(len(batch))
            batches.append((gpu_free, batch))
    return sent, first, last
