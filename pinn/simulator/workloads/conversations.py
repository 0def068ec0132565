"""Conversations, whose requests wait for the previous response and repeat the whole history.

A turn's prompt is the history of prompts and responses plus new tokens: the user's text, or the
result of a tool that the previous response called. The prefix cache therefore contains all tokens
except the new ones, unless some were evicted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from pinn.errors import PinnError
from pinn.simulator.workloads import arrivals

#: Function that samples lengths in tokens, given their mean and their number.
DrawLengths = Callable[[int, int], Int[np.ndarray, " n"]]


@dataclass(frozen=True)
class ConversationShape:
    """Turns, lengths and pauses of conversations; all conversations of a load have the same shape.

    Attributes:
        turns: Number of prompts that a user types in each conversation.
        first_tokens: Tokens of the first prompt, excluding the system prompt.
        turn_tokens: New tokens of each later prompt.
        output_tokens: Tokens of each response.
        system_tokens: Tokens of the system prompt, which conversations of a group share.
        groups: Number of different system prompts; conversations use them round-robin.
        think_s: Mean pause in seconds between a turn's last response and the next prompt,
            exponentially distributed.
        tool_calls: Number of tool calls in each turn, each of which adds a request.
        tool_tokens: Tokens that a tool's result adds.
        tool_delay_s: Mean run time of a tool in seconds, exponentially distributed.
    """

    turns: int
    first_tokens: int
    turn_tokens: int
    output_tokens: int
    system_tokens: int = 0
    groups: int = 1
    think_s: float = 0.0
    tool_calls: int = 0
    tool_tokens: int = 0
    tool_delay_s: float = 0.0

    def __post_init__(self) -> None:
        tools = self.tool_tokens > 0 or self.tool_delay_s > 0
        if tools and self.tool_calls == 0:
            raise PinnError(
                "tool results or delays are given without tool calls: give the number of tool "
                "calls per turn"
            )
        if self.tool_calls > 0 and self.tool_tokens < 1:
            raise PinnError(
                "tool calls are given without results: give at least 1 token for each result"
            )

    @property
    def requests(self) -> int:
        """Number of requests of a conversation."""
        return self.turns * (1 + self.tool_calls)

    def conversations(self, requests: int) -> int:
        """Return the number of complete conversations in a number of requests.

        Raises:
            PinnError: If the requests make up less than one conversation, or one conversation has
                too many requests.
        """
        arrivals.check_requests(self.requests, "a conversation")
        if requests < self.requests:
            raise PinnError(
                f"the load has {requests:,} requests, fewer than the {self.requests:,} requests of "
                "one conversation: send more requests, or give fewer turns"
            )
        return requests // self.requests


def converse(
    shape: ConversationShape,
    offset_s: Float[np.ndarray, " conversations"],
    stage: Int[np.ndarray, " conversations"],
    draw: DrawLengths,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return the columns of a workload of conversations, by name.

    Args:
        shape: Number of turns, lengths and pauses of each conversation.
        offset_s: Time in seconds from the start of the stage to the start of each conversation.
        stage: Load stage of each conversation.
        draw: Function that draws random lengths, given their mean and their number.
        rng: Random number generator of the pauses.
    """
    count, each = len(offset_s), shape.requests
    arrivals.check_requests(count * each, "all conversations")
    call = np.arange(each) % (1 + shape.tool_calls)  # 0 for a user's prompt, 1, ... for tool calls
    new, pause_s = np.empty((count, each), np.int64), np.zeros((count, each))
    new[:, call == 0] = draw(shape.turn_tokens, count * shape.turns).reshape(count, -1)
    new[:, 0] = shape.system_tokens + draw(shape.first_tokens, count)
    pause_s[:, call == 0] = rng.exponential(shape.think_s, (count, shape.turns))
    if shape.tool_calls:
        calls = count * shape.turns * shape.tool_calls
        new[:, call > 0] = draw(shape.tool_tokens, calls).reshape(count, -1)
        pause_s[:, call > 0] = rng.exponential(shape.tool_delay_s, calls).reshape(count, -1)
    pause_s[:, 0] = offset_s
    output = draw(shape.output_tokens, count * each).reshape(count, each)
    known = np.cumsum(new + output, axis=1)
    before = np.arange(count * each).reshape(count, each) - 1
    before[:, 0] = -1
    shared = np.roll(known, 1, axis=1)
    donor = before.copy()
    donor[:, 0] = np.arange(count) - shape.groups  # previous conversation with this system prompt
    donor[:, 0] = np.where(donor[:, 0] >= 0, donor[:, 0] * each, -1)
    shared[:, 0] = shape.system_tokens
    if shape.system_tokens == 0:
        donor[:, 0] = -1
    return {
        "prompt_tokens": (known - output).ravel(),
        "output_tokens": output.ravel(),
        "offset_s": pause_s.ravel(),
        "stage": np.repeat(stage, each),
        "follows": before.ravel(),
        "shares_with": donor.ravel(),
        "shared_tokens": np.where(donor >= 0, shared, 0).ravel(),
    }
