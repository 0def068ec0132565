"""Requested load, described by a file in any known format or by flags.

Random lengths from flags follow vLLM's random data set (``vllm 0.15.1
vllm/benchmarks/datasets.py: RandomDataset.get_sampling_params``): uniform whole numbers from
floor(length x (1 - range ratio)) to ceil(length x (1 + range ratio)). A prefix that all prompts
share comes before each prompt. The default number of requests is also vLLM's, 1,000
(``--num-prompts``).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pinn.common import JsonObject
from pinn.common.documents import MOST_REQUEST_TOKENS, MOST_REQUESTS, MOST_SECONDS, check_size
from pinn.common.numbers import exact
from pinn.errors import PinnError
from pinn.simulator.workloads import arrivals, rates, workload
from pinn.simulator.workloads.conversations import ConversationShape, converse
from pinn.simulator.workloads.csv_trace import read_csv_trace
from pinn.simulator.workloads.hit_rate import with_hit_rate
from pinn.simulator.workloads.public_traces import read_json_load
from pinn.simulator.workloads.workload import Workload
from pinn.specs.catalog import load_model
from pinn.specs.flags import FlagValue, check_flags, flag, flags_apart, flags_of
from pinn.specs.images import parse_size
from pinn.specs.request_media import (
    MOST_AUDIO_S,
    OPTIONS,
    WORDS,
    RequestMedia,
    asked_kind,
    request_media,
)  # fmt: skip

# Workloads from files (``load_workload``).

FORMATS = (
    "a CSV trace (arrival_s, prompt_tokens, output_tokens, or Azure's or BurstGPT's), a TraceV2 "
    "header next to its CSV file, Mooncake's JSON lines, conversations in JSON (ShareGPT), "
    "inference-perf's YAML (load, data), a BLIS workload specification (clients or inference_perf) "
    "or a plain one (prompt_tokens, output_tokens, stages or concurrency)"
)

#: Keys by which the formats of YAML files are recognized.
_KEYS = ("prompt_tokens", "load", "data", "clients", "inference_perf", "trace_version")


def load_workload(
    path: str | Path,
    seed: int | None = None,
    rate_per_s: float | None = None,
    most: int | None = None,
) -> Workload:
    """Load a workload from a file, whose format is recognized from its contents.

    Args:
        path: CSV, YAML or JSON file.
        seed: Random seed that replaces the file's seed; None for the file's seed, or 0 if it has
            none.
        rate_per_s: Mean rate in requests per second that replaces the file's rate. A random load
            keeps its duration, with more or fewer requests. A recorded load is sent more slowly, or
            faster and repeatedly for its own duration. Conversations without times begin at random.
        most: Maximum number of requests, from the start of the file; None for all.

    Raises:
        PinnError: If the file's format is unknown or the file cannot be used.
    """
    if rate_per_s is not None:
        rates.check_rate(rate_per_s)
    found = _load(Path(path), seed, rate_per_s, most)
    if most is not None and len(found) > most:
        found = rates.thinned(found, np.arange(len(found)) < most)
    return found if rate_per_s is None else rates.at_rate(found, rate_per_s)


def _load(path: Path, seed: int | None, rate_per_s: float | None, most: int | None) -> Workload:
    if not path.is_file():
        raise PinnError(f"the workload file {path} does not exist: give {FORMATS}")
    if path.suffix == ".csv":
        return _recorded(read_csv_trace(path, most), seed, rate_per_s, most)
    if path.suffix == ".jsonl" or (path.suffix == ".json" and _is_list(path)):
        return _recorded(read_json_load(path, most), seed, rate_per_s, most)
    from pinn.simulator.workloads import blis_spec, yaml_spec

    values = yaml_spec.read_mapping(path)
    if "trace_version" in values:
        found = read_csv_trace(_beside(path, str(values.get("time_unit", "us"))), most)
        return _recorded(found, seed, rate_per_s, most)
    if isinstance(values.get("load"), dict) and "data" in values:
        return yaml_spec.read_inference_perf(values, path, seed or 0, rate_per_s=rate_per_s)
    if blis_spec.OWN_KEYS & set(values):
        return blis_spec.read_blis_spec(values, path, seed, rate_per_s)
    if "prompt_tokens" in values:
        return yaml_spec.read_plain_spec(values, path, seed, rate_per_s)
    keys = ", ".join(map(str, values))
    close = (difflib.get_close_matches(str(key), _KEYS, n=1, cutoff=0.85) for key in values)
    meant = next((f" (did you mean {found[0]}?)" for found in close if found), "")
    raise PinnError(
        f"the format of the workload file {path} with the keys {keys or '(none)'}{meant} is "
        f"unknown: give {FORMATS}"
    )


def file_seed(path: Path) -> int:
    """Return the seed with which the load of a file is generated unless another seed is given."""
    from pinn.simulator.workloads import yaml_spec

    if path.suffix in (".csv", ".jsonl") or _is_list(path):
        return 0
    values = yaml_spec.read_mapping(path)
    return 0 if "load" in values else int(str(values.get("seed", 0)))


def _is_list(path: Path) -> bool:
    """Return whether a JSON file contains a list."""
    with path.open("rb") as file:
        return file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def _recorded(
    sent: Workload, seed: int | None, rate_per_s: float | None, most: int | None
) -> Workload:
    """Repeat a recorded load, so that it keeps its duration at a higher rate.

    If the load has no times, its requests begin at random.
    """
    if rate_per_s is None:
        return sent
    if not sent.timed:
        return rates.begun_at_random(sent, rate_per_s, seed or 0)
    count = len(sent) * rate_per_s / rates.mean_rate_per_s(sent)
    count = count if most is None else min(count, most)
    arrivals.check_requests(count, f"the workload {sent.name} at {rate_per_s:g} requests/s")
    return rates.repeated(sent, round(count)) if count > len(sent) else sent


def _beside(header: Path, time_unit: str) -> Path:
    """Return the path of the CSV file that belongs to a TraceV2 header.

    It is the file with the header's name or, if there is none, the only CSV file in the folder.
    """
    if time_unit.lower() not in ("us", "microsecond", "microseconds"):
        raise PinnError(f"{header}: time_unit must be microseconds, got {time_unit!r}")
    same = header.with_suffix(".csv")
    beside = [same] if same.is_file() else sorted(header.parent.glob("*.csv"))
    if len(beside) != 1:
        raise PinnError(
            f"the requests of the header {header} are expected in {same}, which does not exist, or "
            f"in the only CSV file of its folder, which has {len(beside)}: add {same.name}"
        )
    return beside[0]


#: Prefix of the name of a temporary folder with the file of a load that was not given as a file.
UNNAMED = "pinn-load-"

# Requested load: a file, or flags like those of ``vllm bench serve``.

_BENCH = "vllm bench serve"
#: Default number of requests (``vllm 0.15.1 vllm/benchmarks/datasets.py``).
_NUM_PROMPTS = 1000
_LENGTHS = "--input-len 1024 --output-len 256"


@dataclass(frozen=True)
class LoadFlags:
    """Flags that describe a load of random requests; the rate is given separately."""

    PANEL: ClassVar[str] = "Load without --workload; accepts options of 'vllm bench serve', too"

    input_len: int | None = flag(
        None,
        "Prompt tokens of each request, without --prefix-len.",
        least=1,
        spelled={_BENCH: "random_input_len"},
    )
    output_len: int | None = flag(
        None,
        "Output tokens of each request; 0 for embeddings, scores and classes.",
        least=0,
        spelled={_BENCH: "random_output_len"},
    )
    concurrency: int | None = flag(
        None,
        "Maximum number of requests in flight. Without --rate the load is a closed loop: a new "
        "request is sent when one ends.",
        least=1,
        spelled={_BENCH: "max_concurrency"},
    )
    num_prompts: int | None = flag(
        None,
        "Number of requests.",
        least=1,
        most=MOST_REQUESTS,
        shown="1000, or rate x duration",
    )
    duration: float | None = flag(
        None, "Time for which requests are sent at --rate.", unit="s", above=0, most=MOST_SECONDS
    )
    range_ratio: float = flag(
        0.0,
        "Spread r of the lengths: uniform from (1 - r) to (1 + r) times the given length.",
        least=0,
        most=0.999999,
        spelled={_BENCH: "random_range_ratio"},
    )
    prefix_len: int = flag(
        0,
        "Further prompt tokens that all requests share at the start, such as a system prompt.",
        least=0,
        spelled={_BENCH: "random_prefix_len"},
    )
    images_per_request: int = flag(
        0,
        "Number of images in each request. Their tokens count as prompt tokens.",
        least=0,
        most=1000,
    )
    image_size: str = flag("1024x1024", "Size of each image.", unit="pixels")
    audio_seconds: float = flag(
        0.0,
        "Length of each audio clip in each request. Its tokens count as prompt tokens.",
        unit="s",
        least=0,
        most=MOST_AUDIO_S,
        shown="no audio",
    )
    audios_per_request: int = flag(
        1, "Number of audio clips in each request, with --audio-seconds.", least=1, most=1000
    )
    turns: int | None = flag(
        None,
        "Number of turns of a conversation. Each turn waits for the previous answer, and its "
        "prompt repeats the conversation so far. --concurrency then counts conversations.",
        least=1,
        most=MOST_REQUESTS,
        spelled={"sglang": "gsp_num_turns"},
    )
    turn_len: int | None = flag(
        None, "New prompt tokens of each turn after the first.", least=1, shown="as --input-len"
    )
    think_time: float = flag(
        0.0,
        "Mean time between an answer and the next turn, exponentially distributed.",
        unit="s",
        least=0,
        most=MOST_SECONDS,
    )
    tool_calls: int = flag(
        0,
        "Number of tool calls in each turn. Each call is an answer, the tool's delay and a "
        "further prompt.",
        least=0,
    )
    tool_len: int | None = flag(None, "Prompt tokens of a tool's result.", least=1)
    tool_delay: float = flag(
        0.0,
        "Mean time of a tool call, exponentially distributed.",
        unit="s",
        least=0,
        most=MOST_SECONDS,
    )
    prefix_hit_rate: float | None = flag(
        None,
        "Share of prompt tokens that hit the prefix cache, 0 to 1. For loads that do not "
        "state which prompts share prefixes.",
        least=0,
        most=0.999,
    )

    def __post_init__(self) -> None:
        check_flags(self)
        parse_size(self.image_size)
        asked_kind(self)

    @property
    def given(self) -> dict[str, FlagValue]:
        """Load flags that differ from their defaults, with their values."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    def draw(self, rate_per_s: float | None, seed: int, media_tokens: int = 0) -> Workload:
        """Return the requests of the load.

        Args:
            rate_per_s: Mean rate of a Poisson process; None or infinite to send all requests at the
                start, with at most ``concurrency`` in flight.
            seed: Random seed.
            media_tokens: Number of tokens of each prompt's images or audio.

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
            raise PinnError(f"the load has neither a request rate nor a concurrency: {remedy}")
        check_size(self.prefix_len, MOST_REQUEST_TOKENS, "--prefix-len", "shorten the prefix")
        shape = self._shape()
        each = shape.requests if shape else 1
        count = shape.conversations(self._count(rate)) if shape else self._count(rate)
        offset = np.zeros(count)
        if rate < math.inf:
            stages = [arrivals.Stage(rate / each, count * each / rate)]
            offset, _ = arrivals.stage_arrivals(stages, arrivals.POISSON, rng)
        columns = (
            self._conversations(shape, offset, rng)
            if shape
            else self._alone(offset, rng, media_tokens)
        )
        found = Workload(self.titled(media_tokens), **columns, concurrency=self.concurrency)
        is_open = rate < math.inf and self.concurrency is None and count > 1
        found = rates.at_rate(found, rate) if is_open else found
        return with_hit_rate(found, self.prefix_hit_rate) if self.prefix_hit_rate else found

    def applied(self, sent: Workload, seed: int) -> Workload:
        """Return a file's load with the clients, pauses and cache hits that the flags add.

        Raises:
            PinnError: If pauses are given for a load without conversations or without times.
        """
        if self.concurrency is not None:
            sent = replace(sent, concurrency=self.concurrency)
        later = ~sent.starts
        if self.think_time:
            if not later.any():
                raise PinnError(f"the workload {sent.name} has no conversations: omit --think-time")
            pauses_s = arrivals.random_draws(seed).exponential(self.think_time, len(sent))
            sent = replace(sent, offset_s=np.where(later, pauses_s, sent.offset_s))
        if not sent.timed and sent.concurrency is None:
            raise PinnError(
                f"the workload {sent.name} does not state when conversations start: give "
                "--rate 8, or --concurrency 64 for 64 conversations at a time"
            )
        return with_hit_rate(sent, self.prefix_hit_rate) if self.prefix_hit_rate else sent

    def _alone(
        self, offset: np.ndarray, rng: np.random.Generator, media_tokens: int
    ) -> dict[str, Any]:
        """Return the columns of a workload of single requests (no conversations), by name."""
        count = len(offset)
        prompt = self.prefix_len + media_tokens + self._lengths(self.input_len or 0, count, rng)
        output = self._lengths(self.output_len or 0, count, rng)
        group = np.full(count, 0 if self.prefix_len else -1)
        shared = workload.share_prompts(group, np.full(count, self.prefix_len))
        return {
            "prompt_tokens": prompt,
            "output_tokens": output,
            "offset_s": offset,
            **shared,
        }

    def _conversations(
        self, shape: ConversationShape, offset: np.ndarray, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Return the columns of a workload of conversations, by name."""

        def draw(mean: int, count: int) -> np.ndarray:
            return self._lengths(mean, count, rng)

        return converse(shape, offset, np.zeros(len(offset), np.int64), draw, rng)

    def _shape(self) -> ConversationShape | None:
        """Return turns, lengths and pauses of conversations; None for single requests."""
        later = ("turn_len", "think_time", "tool_calls", "tool_len", "tool_delay")
        given = [name for name in later if name in self.given]
        if self.turns is None and not given:
            return None
        if self.turns is None:
            option = f"--{given[0].replace('_', '-')}"
            raise PinnError(
                f"{option} applies only to conversations: give --turns as well, or omit {option}"
            )
        if kind := asked_kind(self):
            fault = (
                f"{OPTIONS[kind][0]} cannot be used with --turns, because it is unknown which "
                f"turns have {WORDS[kind]}"
            )
            option = OPTIONS[kind][0]
            raise PinnError(f"{fault}: omit {option}, and add these tokens to --input-len")
        first = self.input_len or 0
        return ConversationShape(
            turns=self.turns,
            first_tokens=first,
            turn_tokens=self.turn_len or first,
            output_tokens=self.output_len or 0,
            system_tokens=self.prefix_len,
            think_s=self.think_time,
            tool_calls=self.tool_calls,
            tool_tokens=self.tool_len or 0,
            tool_delay_s=self.tool_delay,
        )

    def titled(self, media_tokens: int = 0) -> str:
        """Return a title such as ``8 turns of 1024 tokens in, 256 out``."""
        turns = f"{self.turns} turns of " if self.turns else ""
        tokens = (self.turn_len if self.turns else None) or self.input_len or 0
        beside = 0 if self.turns else self.prefix_len + media_tokens
        return f"{turns}{beside + tokens} tokens in, {self.output_len} out"

    def _count(self, rate_per_s: float) -> int:
        if self.duration is None:
            return self.num_prompts or _NUM_PROMPTS
        if self.num_prompts is not None:
            raise PinnError(
                "--num-prompts and --duration both set the length of the load: omit one of the two"
            )
        if math.isinf(rate_per_s):
            raise PinnError(
                "--duration is given without --rate: give --rate, or replace --duration by "
                "--num-prompts"
            )
        sent = rate_per_s * self.duration
        arrivals.check_requests(sent, f"--rate {rate_per_s:g} for --duration {self.duration:g} s")
        return max(int(sent + 1e-9), 1)

    def _lengths(self, mean: int, count: int, rng: np.random.Generator) -> np.ndarray:
        if mean == 0:
            return np.zeros(count, np.int64)
        check_size(
            2 * mean, MOST_REQUEST_TOKENS, "twice the mean length in tokens", "lower the length"
        )
        low = max(math.floor(mean * (1 - self.range_ratio)), 1)
        return rng.integers(low, math.ceil(mean * (1 + self.range_ratio)) + 1, count)


@dataclass(frozen=True)
class Load:
    """Load described by a file or by flags.

    Attributes:
        path: Path of the file; None for flags.
        flags: Flags of the load, in place of a file; some also apply to a file.
        seed: Random seed; None for the file's own seed, or 0 if it has none.
        media: Images or audio clips of each prompt; None if prompts have no media.
    """

    path: Path | None
    flags: LoadFlags
    seed: int | None = None
    media: RequestMedia | None = None

    def draw(self, rate_per_s: float | None = None, seed: int | None = None) -> Workload:
        """Return the requests of the load.

        Args:
            rate_per_s: Mean rate in requests per second that replaces the file's rate, at unchanged
                duration.
            seed: Seed that replaces the load's seed; None keeps the load's seed.

        Raises:
            PinnError: If the file cannot be used, or the flags do not define a load.
        """
        seed = self.seed if seed is None else seed
        if self.path is not None:
            sent = load_workload(self.path, seed, rate_per_s, self.flags.num_prompts)
            return self.flags.applied(sent, seed or 0)
        return self.flags.draw(rate_per_s, seed or 0, self.media_tokens)

    @property
    def media_tokens(self) -> int:
        """Number of tokens of each prompt's images or audio."""
        return 0 if self.media is None else self.media.prompt_tokens

    @property
    def used_seed(self) -> int:
        """Seed with which the load is generated: the given one, else the file's, else 0."""
        if self.seed is None and self.path is not None:
            return file_seed(self.path)
        return self.seed or 0

    @property
    def file(self) -> str | None:
        """Path of the file, or only its name in a temporary folder; None for flags."""
        if self.path is None:
            return None
        return self.path.name if self.path.parent.name.startswith(UNNAMED) else str(self.path)

    @property
    def title(self) -> str:
        """Path of the file, or the flags as a string."""
        return self.file or self.flags.titled(self.media_tokens)

    @property
    def words(self) -> list[str]:
        """Load as command-line arguments, without its rate."""
        given, known = self.flags.given, {f.name: f.option for f in flags_of(LoadFlags)}
        words = [] if self.file is None else ["--workload", self.file]
        words += [word for name, v in given.items() for word in (known[name], exact(v))]
        return words if self.seed is None else [*words, "--seed", str(self.seed)]

    @property
    def document(self) -> JsonObject:
        """Load as a JSON object."""
        if self.file is None:
            return asdict(self.flags)
        return {"path": self.file, **self.flags.given}


#: Names of load flags that can be combined with a file.
_BESIDE_FILE = frozenset({"concurrency", "num_prompts", "think_time", "prefix_hit_rate"})


def asked_load(
    path: Path | None,
    flags: Mapping[str, FlagValue],
    seed: int | None,
    *,
    model: str | Path | None = None,
    closed: bool = True,
) -> tuple[Load, dict[str, FlagValue]]:
    """Return the requested load, and the flags that do not belong to it.

    Args:
        path: Path of a file; None for flags.
        flags: Flags of the load and other flags.
        seed: Random seed.
        model: Name or path of the model, which determines the tokens of images and audio.
        closed: Whether a closed loop is allowed, so that errors suggest it.

    Raises:
        PinnError: If neither a file nor flags define the load, or both do.
    """
    given, rest = flags_apart(LoadFlags, flags)
    if path is not None and (instead := [name for name in given if name not in _BESIDE_FILE]):
        option = f"--{instead[0].replace('_', '-')}"
        raise PinnError(
            f"--workload {path} and {option} both describe the load: omit one of the two"
        )
    if path is None and not given:
        when = "--concurrency 64, or with --rate 8" if closed else "--rate 8"
        remedy = f"give {_LENGTHS} with {when} --duration 600, or --workload FILE"
        raise PinnError(f"the load is missing: {remedy}")
    own = LoadFlags(**given)
    return Load(path, own, seed, _media(own, model)), rest


def _media(flags: LoadFlags, model: str | Path | None) -> RequestMedia | None:
    """Return the images or audio clips of each prompt; None if prompts have no media.

    Raises:
        PinnError: If no model is given, or its image or audio tokens are unknown.
    """
    kind = asked_kind(flags)
    if not kind:
        return None
    if model is None:
        raise PinnError(
            f"{OPTIONS[kind][0]} is given without --model, on which the tokens of {WORDS[kind]} "
            "depend: give --model"
        )
    found = load_model(model)
    return request_media(found.images, found.audio, found.name, flags, flags.prefix_len)
