"""A workload: requests with their lengths, times and shared prompts."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from pinn.common import documents
from pinn.errors import PinnError, printable

# Which earlier request a request shares its first tokens with.


def share_prompts(
    group: Int[np.ndarray, " n"],
    prefix_tokens: Int[np.ndarray, " n"],
    prompt: Int[np.ndarray, " n"] | None = None,
    prompt_tokens: Int[np.ndarray, " n"] | int = 0,
) -> dict[str, Any]:
    """Donors and shared tokens of requests whose prompts repeat or begin alike.

    Args:
        group: Group whose prompts share their first tokens; -1 for none.
        prefix_tokens: How many tokens the request shares with its group.
        prompt: Prompt identity: equal numbers are equal prompts, -1 is unique; None where all are.
        prompt_tokens: Prompt lengths.

    Returns:
        ``shares_with``, the index of the donor (-1 for none), and ``shared_tokens``.
    """
    donor = _first_of(group)
    shared = np.where(donor >= 0, np.minimum(prefix_tokens, prefix_tokens[donor]), 0)
    if prompt is not None:
        same = _first_of(prompt)
        donor = np.where(same >= 0, same, donor)
        shared = np.where(same >= 0, prompt_tokens, shared)
    return {"shares_with": donor, "shared_tokens": shared}


def _first_of(label: np.ndarray) -> np.ndarray:
    """Index of the first entry with the same label; -1 for the first itself and for label -1."""
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    origin = first[inverse]
    return np.where((label >= 0) & (origin < np.arange(len(label))), origin, -1)


# What clients send: requests with their lengths, times, shared prompts and patience.

#: aiohttp gives up after five minutes unless told otherwise; inference-perf does not tell it.
AIOHTTP_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Workload:
    """``n`` requests in the order in which they are sent.

    Columns that have a default may be given empty, which stands for it.

    Attributes:
        name: For print-outs only.
        prompt_tokens: Prompt length of each request, at least 1.
        output_tokens: Tokens that each request generates, at least 1.
        offset_s: When it is sent, from the opening of its stage; never falling inside a stage.
        stage: Load stage it belongs to, 0, 1, ...; never falling.
        shares_with: Index of an earlier request whose first tokens it repeats; -1 for none. The
            donor's sequence is its prompt followed by its output.
        shared_tokens: How many of its first tokens it shares with the donor.
        transferred_tokens: First prompt tokens whose keys and values arrive over the network, as
            behind a prefill server; 0 for a request that is prefilled here.
        timeout_s: The client hangs up after this long; infinity for a patient one.
        concurrency: Most requests in flight at once (a closed loop when every offset is 0); None
            for an open loop.
        stages_wait: Whether a stage opens only when every request of the one before has ended.
        stage_gap_s: Pause between that moment and the opening.
        stage_starts_s: When each stage opens, if stages do not wait.
    """

    name: str
    prompt_tokens: Int[np.ndarray, " n"]
    output_tokens: Int[np.ndarray, " n"]
    offset_s: Float[np.ndarray, " n"]
    stage: Int[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0, np.int64))
    shares_with: Int[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0, np.int64))
    shared_tokens: Int[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0, np.int64))
    transferred_tokens: Int[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0, np.int64))
    timeout_s: Float[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0))
    concurrency: int | None = None
    stages_wait: bool = False
    stage_gap_s: float = 0.0
    stage_starts_s: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))
        n = len(self.prompt_tokens)
        if n == 0:
            raise self._fault("it has 0 requests; it needs at least 1")
        for name, (default, _, _) in COLUMNS.items():
            given = np.asarray(getattr(self, name), dtype=type(default))
            column = np.full(n, default) if len(given) == 0 else given
            if len(column) != n:
                raise self._fault(f"{name} has {len(column)} entries for {n} requests")
            object.__setattr__(self, name, column)
        self._check_values()
        self._check_order()
        self._check_starts()

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def stages(self) -> int:
        """Number of load stages."""
        return int(self.stage[-1]) + 1

    def _fault(self, text: str) -> PinnError:
        return PinnError(f"workload {self.name}: {text}")

    def _check_values(self) -> None:
        for name, (_, least, most) in COLUMNS.items():
            column = getattr(self, name)
            bad = np.flatnonzero(~(column >= least))
            if len(bad):
                given = f"{name} of request {bad[0]} is {column[bad[0]]}"
                raise self._fault(f"{given}; it must be at least {least}")
            documents.check_size(
                float(column.max()), most, f"workload {self.name}: {name}", "shorten it"
            )
        documents.check_size(
            len(self), documents.MOST_REQUESTS, f"workload {self.name}: requests", "send fewer"
        )
        documents.check_size(
            float(self.output_tokens.sum()),
            documents.MOST_OUTPUT_TOKENS,
            f"workload {self.name}: output tokens of all requests",
            "send fewer requests, or shorter ones",
        )
        bad = np.flatnonzero(~(self.timeout_s > 0))
        if len(bad):
            raise self._fault(
                f"timeout_s of request {bad[0]} is {self.timeout_s[bad[0]]}; it must be positive, "
                "or infinite for a client that waits"
            )
        if self.concurrency is not None and self.concurrency < 1:
            raise self._fault(f"concurrency must be at least 1, got {self.concurrency}")

    def _check_starts(self) -> None:
        """A request that is due before one that is sent earlier would be sent in the past."""
        if self.stages_wait:
            return
        if len(self.stage_starts_s) != self.stages:
            given = len(self.stage_starts_s)
            raise self._fault(f"{self.stages} stages need as many stage_starts_s, got {given}")
        due = np.array(self.stage_starts_s)[self.stage] + self.offset_s
        early = np.flatnonzero(np.diff(due) < 0)
        if len(early):
            r = int(early[0])
            raise self._fault(
                f"request {r + 1} of stage {self.stage[r + 1]} is due at {due[r + 1]:g} s, before "
                f"request {r} of the stage before at {due[r]:g} s: open the stage later"
            )

    def _check_order(self) -> None:
        gaps, steps = np.diff(self.offset_s), np.diff(self.stage)
        bad = np.flatnonzero((steps < 0) | (steps > 1) | ((steps == 0) & (gaps < 0)))
        if len(bad) or self.stage[0] != 0:
            where = int(bad[0]) + 1 if len(bad) else 0
            raise self._fault(
                f"request {where} is out of order; sort requests by stage (0, 1, ... without a "
                "gap) and by offset_s inside a stage"
            )
        late = np.flatnonzero(self.shares_with >= np.arange(len(self)))
        if len(late):
            raise self._fault(
                f"request {late[0]} shares tokens with request {self.shares_with[late[0]]}, which "
                "is not sent before it"
            )


#: Column of a workload -> (what an empty one stands for, its least value, its largest value).
COLUMNS: dict[str, tuple[float, float, float]] = {
    "prompt_tokens": (1, 1, documents.MOST_REQUEST_TOKENS),
    "output_tokens": (1, 1, documents.MOST_REQUEST_TOKENS),
    "offset_s": (0.0, 0.0, documents.MOST_SECONDS),
    "stage": (0, -np.inf, np.inf),
    "shares_with": (-1, -np.inf, np.inf),
    "shared_tokens": (0, 0, np.inf),
    "transferred_tokens": (0, 0, np.inf),
    "timeout_s": (np.inf, 0.0, np.inf),
}
