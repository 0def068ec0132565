"""A load as it is asked for: a file, whatever wrote it, or a few flags.

Columns of a CSV, a simple one or BLIS's TraceV2 (header YAML and CSV); others are read over:

| column | meaning |
|---|---|
| arrival_s, arrival_ms or arrival_time_us | when it was sent; the earliest one counts as 0 |
| prompt_tokens, server_input_tokens or input_tokens | prompt length; the server's count wins |
| output_tokens | tokens generated |
| prefix_group, prefix_tokens (or prefix_length) | prompts of a group share their first tokens |
| prompt_id | equal ids are equal prompts |
| session_id, round_index | a later round repeats the prompt and output of the one before |
| timeout_s, or deadline_us on the clock of arrival | when the client hangs up; empty or 0: never |
| transferred_tokens | first prompt tokens whose keys and values come over the network |

Lengths of flags are drawn as vLLM's random data set draws them (``vllm 0.15.1
vllm/benchmarks/datasets.py: RandomDataset.get_sampling_params``): uniform whole numbers from
floor(length x (1 - range ratio)) to ceil(length x (1 + range ratio)), prompts behind a prefix that
all of them share. 1,000 requests are its default (``--num-prompts``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pinn.common import JsonObject, documents
from pinn.common.documents import MOST_REQUEST_TOKENS, MOST_REQUESTS, MOST_SECONDS, check_size
from pinn.common.numbers import exact
from pinn.errors import PinnError
from pinn.simulator.workloads import arrivals, workload
from pinn.simulator.workloads.workload import Workload
from pinn.specs.catalog import load_model
from pinn.specs.flags import FlagValue, check_flags, flag, flags_apart, flags_of
from pinn.specs.images import parse_size
from pinn.units import MICROSECOND, MILLISECOND

# A recorded load: a CSV trace.

_ARRIVAL = {"arrival_s": 1.0, "arrival_ms": MILLISECOND, "arrival_time_us": MICROSECOND}
_PROMPT = ("server_input_tokens", "prompt_tokens", "input_tokens")
_PREFIX = ("prefix_tokens", "prefix_length")
_LABELS = ("prefix_group", "prompt_id", "session_id")
_OTHERS = ("output_tokens", "timeout_s", "deadline_us", "transferred_tokens")
_READ = frozenset({*_ARRIVAL, *_PROMPT, *_PREFIX, *_LABELS, *_OTHERS})


def read_csv_trace(path: Path) -> Workload:
    """The requests of a trace, sent when they were sent.

    Raises:
        PinnError: If the file cannot be read, lacks a column or holds a value that is no number.
    """
    columns = _Columns(path)
    clock = columns.first(_ARRIVAL, "the arrival time")
    moments = columns.numbers(clock)
    columns.refuse(moments < 0, lambda i: f"{clock} is {moments[i]:g}: it must be 0 or later")
    arrival = moments * _ARRIVAL[clock]
    order = np.argsort(arrival, kind="stable")
    columns.first(_PROMPT, "the prompt length")
    prompt = np.zeros(len(columns), np.int64)
    for name in reversed(_PROMPT):
        given = columns.whole(name, 0)
        prompt = np.where(given > 0, given, prompt)
    output = columns.whole("output_tokens")
    timeout = _timeouts(columns, arrival)
    arrival = arrival - arrival.min()
    return Workload(
        path.stem,
        prompt[order],
        output[order],
        arrival[order],
        **_sharing(columns, order, prompt[order], output[order]),
        transferred_tokens=columns.whole("transferred_tokens", 0)[order],
        timeout_s=timeout[order],
    )


class _Columns:
    """A CSV file by columns; those that a trace may have."""

    def __init__(self, path: Path) -> None:
        table = documents.CsvTable(path)
        self.path, self.names = path, table.names
        places = [(name, i) for i, name in enumerate(self.names) if name in _READ]
        self._cells: dict[str, list[str]] = {name: [] for name, _ in places}
        self._lines: list[int] = []
        for line, cells in table.rows():
            arrivals.check_requests(len(self._lines), str(path))
            self._lines.append(line)
            for name, place in places:
                self._cells[name].append(cells[place])
        if not self._lines:
            raise PinnError(f"{path}: it has 0 requests; it needs a header line and at least one")

    def __len__(self) -> int:
        return len(self._lines)

    def refuse(self, bad: np.ndarray, reason: Callable[[int], str]) -> None:
        """Stop at the first row that a mask selects, with its line and the reason."""
        rows = np.flatnonzero(bad)
        if len(rows):
            raise PinnError(f"{self.path}, line {self._lines[rows[0]]}: {reason(int(rows[0]))}")

    def first(self, names: Iterable[str], meaning: str) -> str:
        """The first of some columns that the file has."""
        for name in names:
            if name in self.names:
                return name
        expected = f"expected a column {' or '.join(names)}, got {', '.join(self.names)}"
        raise PinnError(f"{self.path}: {meaning} is missing: {expected}")

    def numbers(self, name: str, default: float | None = None) -> np.ndarray:
        """A column of numbers; the default stands for a missing column or an empty cell."""
        column = self._cells.get(name, [""] * len(self))
        return np.array([self._number(i, text, name, default) for i, text in enumerate(column)])

    def whole(self, name: str, default: int | None = None) -> np.ndarray:
        """A column of whole numbers from 0 on."""
        found = self.numbers(name, default)
        bad = (found != np.rint(found)) | (found < 0) | (found > MOST_REQUEST_TOKENS)
        rule = f"it must be a whole number from 0 to {MOST_REQUEST_TOKENS:,}"
        self.refuse(bad, lambda i: f"{name} is {self._cells[name][i]!r:.60}, {rule}")
        return found.astype(np.int64)

    def labels(self, name: str) -> np.ndarray:
        """A column of names as numbers; -1 for a missing column or an empty cell."""
        texts = self._cells.get(name, [""] * len(self))
        known = {text: i for i, text in enumerate(sorted(set(texts) - {""}))}
        return np.array([known.get(text, -1) for text in texts])

    def _number(self, i: int, text: str, name: str, default: float | None) -> float:
        if text == "" and default is not None:
            return float(default)
        with suppress(ValueError):
            value = float(text)
            if math.isfinite(value):
                return value
        fault = f"is {text!r:.60}, no finite number" if text else "is missing"
        raise PinnError(f"{self.path}, line {self._lines[i]}: {name} {fault}")


def _timeouts(columns: _Columns, arrival: np.ndarray) -> np.ndarray:
    patience = columns.numbers("timeout_s", 0.0)
    remedy = "leave it empty, or 0, for a client that waits"
    columns.refuse(patience < 0, lambda i: f"timeout_s is {patience[i]:g}: {remedy}")
    deadline = columns.numbers("deadline_us", 0.0) * MICROSECOND
    patience = np.where(deadline > 0, deadline - arrival, patience)
    fault = "deadline_us lies before the arrival: it counts on the same clock"
    columns.refuse((deadline > 0) & (patience <= 0), lambda _: fault)
    return np.where(patience > 0, patience, np.inf)


def _sharing(
    columns: _Columns, order: np.ndarray, prompt: np.ndarray, output: np.ndarray
) -> dict[str, Any]:
    name = next((n for n in _PREFIX if n in columns.names), _PREFIX[0])
    prefix = columns.whole(name, 0)
    of_row = prompt[np.argsort(order)]
    columns.refuse(
        prefix > of_row,
        lambda i: f"{name} is {prefix[i]}, longer than the prompt of {of_row[i]} tokens",
    )
    group, same = (columns.labels(label)[order] for label in ("prefix_group", "prompt_id"))
    found = workload.share_prompts(group, prefix[order], same, prompt)
    latest: dict[int, int] = {}
    for i, session in enumerate(columns.labels("session_id")[order].tolist()):
        before = latest.get(session, -1) if session >= 0 else -1
        if before >= 0 and prompt[i] > prompt[before] + output[before]:
            found["shares_with"][i] = before
            found["shared_tokens"][i] = prompt[before] + output[before]
        latest[session] = i
    return found


# Workloads from files: ``load_workload``.

FORMATS = (
    "a CSV trace (arrival_s, prompt_tokens, output_tokens), a TraceV2 header beside its CSV, "
    "inference-perf's YAML (load, data), a BLIS workload specification (clients or inference_perf) "
    "or a plain one (prompt_tokens, output_tokens, stages or concurrency)"
)


def load_workload(
    path: str | Path, seed: int | None = None, rate_per_s: float | None = None
) -> Workload:
    """Load a workload; what kind of file it is shows in its contents.

    Args:
        path: A CSV or YAML (or JSON) file.
        seed: Of the random draws, in place of the file's (0 where it names none).
        rate_per_s: Exact mean rate, in place of the file's. Loads that are drawn last as long as
            they would, with more or fewer requests, as if the file named that rate. A recorded one
            is sent faster and again and again for as long as it lasts, or slower.

    Raises:
        PinnError: If the file is of no known kind or cannot be used.
    """
    if rate_per_s is None:
        return _load(Path(path), seed, None)
    workload.check_rate(rate_per_s)
    return workload.at_rate(_load(Path(path), seed, rate_per_s), rate_per_s)


def _load(path: Path, seed: int | None, rate_per_s: float | None) -> Workload:
    if not path.is_file():
        raise PinnError(f"no workload at {path}: give {FORMATS}")
    if path.suffix == ".csv":
        return _recorded(read_csv_trace(path), rate_per_s)
    from pinn.simulator.workloads import blis_spec, yaml_spec

    values = yaml_spec.read_mapping(path)
    if "trace_version" in values:
        return _recorded(_load_trace(path, str(values.get("time_unit", "us"))), rate_per_s)
    if isinstance(values.get("load"), dict) and "data" in values:
        return yaml_spec.read_inference_perf(values, path, seed or 0, rate_per_s=rate_per_s)
    if blis_spec.OWN_KEYS & set(values):
        return blis_spec.read_blis_spec(values, path, seed, rate_per_s)
    if "prompt_tokens" in values:
        return yaml_spec.read_plain_spec(values, path, seed, rate_per_s)
    raise PinnError(f"{path}: cannot tell what kind of workload this is: give {FORMATS}")


def _recorded(sent: Workload, rate_per_s: float | None) -> Workload:
    """As many requests as are sent at a rate while a recorded load lasts, but no fewer than its."""
    if rate_per_s is None:
        return sent
    count = len(sent) * rate_per_s / workload.mean_rate_per_s(sent)
    arrivals.check_requests(count, f"workload {sent.name} at {rate_per_s:g}/s")
    return workload.repeated(sent, round(count)) if count > len(sent) else sent


def _load_trace(header: Path, time_unit: str) -> Workload:
    """The CSV of a TraceV2 header has its name, or is the only CSV beside it."""
    if time_unit.lower() not in ("us", "microsecond", "microseconds"):
        raise PinnError(f"{header}: time_unit is {time_unit!r}, expected microseconds")
    same = header.with_suffix(".csv")
    beside = [same] if same.is_file() else sorted(header.parent.glob("*.csv"))
    if len(beside) != 1:
        raise PinnError(f"{header}: expected its requests in {same}, found {len(beside)} CSV files")
    return read_csv_trace(beside[0])


# What is sent, as it is asked for: a file, or flags as ``vllm bench serve`` has them.

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
        None,
        "Tokens that a request generates; 0 for embeddings, scores and classes.",
        least=0,
        spelled={_BENCH: "random_output_len"},
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
    images_per_request: int = flag(
        0, "Images of a request, whose tokens are part of its prompt.", least=0, most=1000
    )
    image_size: str = flag("1024x1024", "Size of each image.", unit="pixels")

    def __post_init__(self) -> None:
        check_flags(self)
        parse_size(self.image_size)

    @property
    def given(self) -> dict[str, FlagValue]:
        """Flags that are not the default."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    def draw(self, rate_per_s: float | None, seed: int, image_tokens: int = 0) -> Workload:
        """The requests.

        Args:
            rate_per_s: At which they are sent, in the mean of a Poisson process; None or infinite
                for at once, ``concurrency`` of them at a time.
            seed: Of the random draws.
            image_tokens: Tokens of each prompt's images.

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
            remedy = "give --concurrency 64, or --rate 8 --duration 600, or --workload FILE"
            raise PinnError(f"nothing says when requests are sent: {remedy}")
        count = self._count(rate)
        offset = np.zeros(count)
        if rate < math.inf:
            stages = [arrivals.Stage(rate, count / rate)]
            offset, _ = arrivals.stage_arrivals(stages, arrivals.POISSON, rng)
        check_size(self.prefix_len, MOST_REQUEST_TOKENS, "--prefix-len", "shorten it")
        prompt = self.prefix_len + image_tokens + self._lengths(self.input_len, count, rng)
        output = self._lengths(self.output_len, count, rng)
        group = np.full(count, 0 if self.prefix_len else -1)
        shared = workload.share_prompts(group, np.full(count, self.prefix_len))
        found = Workload(
            self.titled(image_tokens),
            prompt,
            output,
            offset,
            **shared,
            concurrency=self.concurrency,
        )
        is_open = rate < math.inf and self.concurrency is None and count > 1
        return workload.at_rate(found, rate) if is_open else found

    def titled(self, image_tokens: int = 0) -> str:
        """``1024 tokens in, 256 out``."""
        prompt = self.prefix_len + (self.input_len or 0) + image_tokens
        return f"{prompt} tokens in, {self.output_len} out"

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
        if mean == 0:
            return np.zeros(count, np.int64)
        check_size(2 * mean, MOST_REQUEST_TOKENS, "twice the tokens of a request", "shorten it")
        low = max(math.floor(mean * (1 - self.range_ratio)), 1)
        return rng.integers(low, math.ceil(mean * (1 + self.range_ratio)) + 1, count)


def _typed(value: FlagValue) -> str:
    return exact(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Load:
    """What is sent: a file's content, or what flags say.

    Attributes:
        path: Of the file; None for flags.
        flags: In place of a file.
        seed: Of the random draws; None for the file's own, or 0.
        image_tokens: Tokens of each prompt's images.
    """

    path: Path | None
    flags: LoadFlags
    seed: int | None = None
    image_tokens: int = 0

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
            return load_workload(self.path, seed, rate_per_s)
        return self.flags.draw(rate_per_s, seed or 0, self.image_tokens)

    @property
    def title(self) -> str:
        """Path of the file, or the flags in words."""
        return self.flags.titled(self.image_tokens) if self.path is None else str(self.path)

    @property
    def words(self) -> list[str]:
        """As the command line says it, without rate."""
        if self.path is not None:
            words = ["--workload", str(self.path)]
        else:
            given, known = self.flags.given, {f.name: f.option for f in flags_of(LoadFlags)}
            words = [word for name, v in given.items() for word in (known[name], _typed(v))]
        return words if self.seed is None else [*words, "--seed", str(self.seed)]

    @property
    def document(self) -> JsonObject:
        """For JSON."""
        return {"path": str(self.path)} if self.path is not None else asdict(self.flags)


def asked_load(
    path: Path | None,
    flags: Mapping[str, FlagValue],
    seed: int | None,
    *,
    model: str | Path | None = None,
    closed: bool = True,
) -> tuple[Load, dict[str, FlagValue]]:
    """The load, and the flags that are not its own.

    Args:
        path: Of a file; None where flags say it.
        flags: Of the load and others.
        seed: Of random draws.
        model: Name or path of the model, which decides what images come to.
        closed: Whether clients may wait for answers, which an error then advises too.

    Raises:
        PinnError: If neither a file nor flags say what is sent, or both do.
    """
    given, rest = flags_apart(LoadFlags, flags)
    if path is not None and given:
        both = f"--workload {path} and --{next(iter(given)).replace('_', '-')}"
        raise PinnError(f"{both} both say what is sent: leave one of them out")
    if path is None and not given:
        when = "--concurrency 64, or with --rate 8" if closed else "--rate 8"
        remedy = f"give {_LENGTHS} with {when} --duration 600, or --workload FILE"
        raise PinnError(f"nothing says what is sent: {remedy}")
    own = LoadFlags(**given)
    return Load(path, own, seed, _image_tokens(own, model)), rest


def _image_tokens(flags: LoadFlags, model: str | Path | None) -> int:
    """Return the tokens of a prompt's images.

    Raises:
        PinnError: If the model is not named, or nothing is known of its images.
    """
    if not flags.images_per_request:
        return 0
    if model is None:
        raise PinnError("--images-per-request: the tokens of an image depend on it: give --model")
    found = load_model(model)
    if found.images is None:
        fault = f"--images-per-request: what {found.name} makes of an image is not known"
        raise PinnError(f"{fault}: add the tokens of its images to --input-len")
    return flags.images_per_request * found.images.tokens(*parse_size(flags.image_size))
