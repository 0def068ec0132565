"""What is sent, as it is asked for: a file, or a few flags as ``vllm bench serve`` has them.

Lengths are drawn as vLLM's random data set draws them (``vllm 0.15.1 vllm/benchmarks/datasets.py:
RandomDataset.get_sampling_params``): uniform whole numbers from floor(length x (1 - range ratio))
to ceil(length x (1 + range ratio)), prompts behind a prefix that all of them share. 1,000 requests
are its default (``--num-prompts``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pinn.common.documents import MOST_REQUEST_TOKENS, MOST_REQUESTS, MOST_SECONDS, check_size
from pinn.errors import PinnError
from pinn.simulator.workloads import arrivals, load
from pinn.simulator.workloads.workload import Workload, share_prompts
from pinn.specs.flags import check_flags, flag, flags_apart, flags_of

_BENCH = "vllm bench serve"
#: Requests where nothing says how many (``vllm 0.15.1 vllm/benchmarks/datasets.py``).
_NUM_PROMPTS = 1000
_LENGTHS = "--input-len 1024 --output-len 256"


@dataclass(frozen=True)
class LoadFlags:
    """A load of requests alike, in flags; ``--rate`` belongs to the commands."""

    PANEL: ClassVar[str] = "The load, in place of --workload; as 'vllm bench serve' spells it too"

    input_len: int | None = flag(
        None,
        "Prompt tokens of a request, without --prefix-len.",
        least=1,
        spelled={_BENCH: "random_input_len"},
    )
    output_len: int | None = flag(
        None, "Tokens that a request generates.", least=1, spelled={_BENCH: "random_output_len"}
    )
    concurrency: int | None = flag(
        None,
        "Requests in flight at most; without --rate clients send the next one when one ends.",
        least=1,
        spelled={_BENCH: "max_concurrency"},
    )
    num_prompts: int | None = flag(
        None, "Requests in all.", least=1, most=MOST_REQUESTS, shown="1000, or rate x duration"
    )
    duration: float | None = flag(
        None, "How long requests are sent at --rate.", unit="s", above=0, most=MOST_SECONDS
    )
    range_ratio: float = flag(
        0.0,
        "Lengths are uniform from (1 - this) to (1 + this) times the given ones.",
        least=0,
        most=0.999999,
        spelled={_BENCH: "random_range_ratio"},
    )
    prefix_len: int = flag(
        0,
        "Further prompt tokens, which all requests share.",
        least=0,
        spelled={_BENCH: "random_prefix_len"},
    )

    def __post_init__(self) -> None:
        check_flags(self)

    @property
    def given(self) -> dict[str, Any]:
        """Flags that are not the default."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    def draw(self, rate_per_s: float | None, seed: int) -> Workload:
        """The requests.

        Args:
            rate_per_s: At which they are sent, in the mean of a Poisson process; None or infinite
                for at once, ``concurrency`` of them at a time.
            seed: Of the random draws.

        Raises:
            PinnError: If flags are missing or contradict each other.
        """
        rng = arrivals.random_draws(seed)
        rate = math.inf if rate_per_s is None else rate_per_s
        if not rate > 0:
            raise PinnError(f"--rate must be positive, got {rate:g} requests/s")
        if self.input_len is None or self.output_len is None:
            missing = "--input-len" if self.input_len is None else "--output-len"
            raise PinnError(f"{missing} is missing: give {_LENGTHS}, or --workload FILE")
        if rate_per_s is None and self.concurrency is None:
            raise PinnError(
                "nothing says when requests are sent: give --concurrency 64, or --rate 8 "
                "--duration 600, or --workload FILE"
            )
        count = self._count(rate)
        offset = np.zeros(count)
        if rate < math.inf:
            offset, _ = arrivals.stage_arrivals(
                [arrivals.Stage(rate, count / rate)], arrivals.POISSON, rng
            )
        check_size(self.prefix_len, MOST_REQUEST_TOKENS, "--prefix-len", "shorten it")
        prompt = self.prefix_len + self._lengths(self.input_len, count, rng)
        output = self._lengths(self.output_len, count, rng)
        group = np.full(count, 0 if self.prefix_len else -1)
        shared = share_prompts(group, np.full(count, self.prefix_len))
        found = Workload(self.title, prompt, output, offset, **shared, concurrency=self.concurrency)
        is_open = rate < math.inf and self.concurrency is None and count > 1
        return load.at_rate(found, rate) if is_open else found

    @property
    def title(self) -> str:
        """``1024 tokens in, 256 out``."""
        return f"{self.prefix_len + (self.input_len or 0)} tokens in, {self.output_len} out"

    def _count(self, rate_per_s: float) -> int:
        if self.duration is None:
            return self.num_prompts or _NUM_PROMPTS
        if self.num_prompts is not None:
            raise PinnError("--num-prompts and --duration both end the load: give one of them")
        if math.isinf(rate_per_s):
            raise PinnError("--duration needs --rate; a load without one ends by --num-prompts")
        sent = rate_per_s * self.duration
        arrivals.check_requests(sent, f"--rate {rate_per_s:g} for --duration {self.duration:g} s")
        return max(int(sent + 1e-9), 1)

    def _lengths(self, mean: int, count: int, rng: np.random.Generator) -> np.ndarray:
        check_size(2 * mean, MOST_REQUEST_TOKENS, "twice the tokens of a request", "shorten it")
        low = max(math.floor(mean * (1 - self.range_ratio)), 1)
        return rng.integers(low, math.ceil(mean * (1 + self.range_ratio)) + 1, count)


@dataclass(frozen=True)
class Load:
    """What is sent: a file's content, or what flags say.

    Attributes:
        path: Of the file; None for flags.
        flags: In place of a file.
        seed: Of the random draws; None for the file's own, or 0.
    """

    path: Path | None
    flags: LoadFlags
    seed: int | None = None

    def draw(self, rate_per_s: float | None = None, seed: int | None = None) -> Workload:
        """The requests.

        Args:
            rate_per_s: Mean rate, in place of the file's own: as long a load with more or fewer
                requests.
            seed: In place of the load's.

        Raises:
            PinnError: If the file cannot be used, or flags do not make a load.
        """
        seed = self.seed if seed is None else seed
        if self.path is not None:
            return load.load_workload(self.path, seed, rate_per_s)
        return self.flags.draw(rate_per_s, seed or 0)

    @property
    def title(self) -> str:
        """Path of the file, or the flags in words."""
        return self.flags.title if self.path is None else str(self.path)

    @property
    def words(self) -> list[str]:
        """As the command line says it, without rate."""
        if self.path is not None:
            words = ["--workload", str(self.path)]
        else:
            given = self.flags.given
            named = [f for f in flags_of(LoadFlags) if f.name in given]
            words = [word for f in named for word in (f.option, str(given[f.name]))]
        return words if self.seed is None else [*words, "--seed", str(self.seed)]

    @property
    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"path": str(self.path)} if self.path is not None else asdict(self.flags)


def asked_load(
    path: Path | None, flags: Mapping[str, Any], seed: int | None, closed: bool = True
) -> tuple[Load, dict[str, Any]]:
    """The load, and the flags that are not its own.

    Args:
        path: Of a file; None where flags say it.
        flags: Of the load and others.
        seed: Of random draws.
        closed: Whether clients may wait for answers, which an error then advises too.

    Raises:
        PinnError: If neither a file nor flags say what is sent, or both do.
    """
    given, rest = flags_apart(LoadFlags, flags)
    if path is not None and given:
        option = "--" + next(iter(given)).replace("_", "-")
        raise PinnError(
            f"--workload {path} and {option} both say what is sent: leave one of them out"
        )
    if path is None and not given:
        when = "--concurrency 64, or with --rate 8" if closed else "--rate 8"
        raise PinnError(
            f"nothing says what is sent: give {_LENGTHS} with {when} --duration 600, or "
            "--workload FILE"
        )
    return Load(path, LoadFlags(**given), seed), rest
