"""Resolved engine configuration: a release's defaults, and every setting derived from them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Any, TypedDict

from pinn.common.files import data_folder, read_rows
from pinn.errors import PinnError
from pinn.specs.flags import flags_of
from pinn.specs.gpu import GpuSpec
from pinn.specs.serving import ServingSpec
from pinn.specs.speculation import Speculation
from pinn.units import GIB

# Defaults of the engines: one table by engine, version, GPU, tensor parallelism and model.
#
# ``data/engines/defaults.csv`` holds every default once, a source in each line. The first line
# that fits counts; an empty cell fits everything.

#: Numbers of a version.
Release = tuple[int, ...]
#: A version and what may follow its numbers.
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class Default:
    """One line of a table of defaults; what a table has no column for fits everything.

    Attributes:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        flag: Field of ``ServingSpec``; of kernels of experts the number format of their weights.
        since: First release; None for all before.
        until: First release that it no longer holds for; None for all after.
        gpu: Regular expression for a part of the GPU's name in small letters; empty for any.
        limits: Least value and the value to stay below, of the GPU's memory in GiB, its compute
            capability and the tensor-parallel size.
        models: Types of the models; empty for any.
        spread: Ways to spread experts, of ``tp``, ``ep`` and ``dp``; empty for any.
        value: Value as the flag reads it.
        assumed: Whether nobody read it in the engine's own source.
        source: Where it is from.
    """

    engine: str
    flag: str
    since: Release | None
    until: Release | None
    gpu: str
    limits: tuple[tuple[float, float], ...]
    models: tuple[str, ...]
    spread: tuple[str, ...]
    value: str
    assumed: bool
    source: str

    def holds(self, version: Release, gpu: GpuSpec, tp: int, model_type: str, spread: str) -> bool:
        """Whether it is the default of a release on a GPU."""
        sizes = gpu.memory_bytes / GIB, gpu.compute_capability, tp
        return (
            (self.since is None or version >= self.since)
            and (self.until is None or version < self.until)
            and re.search(self.gpu, gpu.name.lower()) is not None
            and all(a <= size < b for size, (a, b) in zip(sizes, self.limits, strict=True))
            and (not self.models or model_type in self.models)
            and (not self.spread or spread in self.spread)
        )


@lru_cache(maxsize=1024)
def release(version: str) -> Release:
    """Numbers of a version without what follows them, such as a release candidate's.

    Raises:
        PinnError: If it does not begin with a number.

    >>> release("1.2.0rc6.post2"), release("v0.5.9-cu130")
    ((1, 2, 0), (0, 5, 9))
    """
    found = _RELEASE.match(version.strip())
    if found is None:
        remedy = "give the release on which the build is based"
        raise PinnError(
            f"--engine-version must be a release such as 0.15.1, got {version!r}: {remedy}"
        )
    return tuple(int(number) for number in found.group(1).split("."))


@cache
def engine_rows(name: str) -> list[dict[str, str]]:
    """Lines of a table of ``data/engines``, in their order; read once."""
    return read_rows(data_folder("engines") / name)


def typed(kind: Any, text: str) -> object:
    """Return a table's text in the type of the field that it sets; ``yes`` is true."""
    return text == "yes" if kind is bool else kind(text)


@cache
def all_defaults() -> tuple[Default, ...]:
    """Every line of the table, in its order."""
    return tuple(map(_default, engine_rows("defaults.csv")))


@cache
def kernel_defaults() -> tuple[Default, ...]:
    """Every line of ``data/engines/expert_kernels.csv`` (``scripts/read_engines.py``)."""
    rows = engine_rows("expert_kernels.csv")
    return tuple(_default(row | {"flag": row["format"], "value": row["kernels"]}) for row in rows)


@cache
def _of(engine: str, flag: str) -> tuple[Default, ...]:
    return tuple(d for d in all_defaults() if (d.engine, d.flag) == (engine, flag))


@cache
def models_named(engine: str) -> frozenset[str]:
    """Types of models that any default of an engine asks for."""
    return frozenset(m for d in all_defaults() if d.engine == engine for m in d.models)


@lru_cache(maxsize=16384)
def engine_default(
    engine: str, flag: str, version: str, gpu: GpuSpec, tp: int = 1, model_type: str = ""
) -> Default:
    """The default of a flag.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        flag: Field of ``ServingSpec``.
        version: Release as in ``--engine-version``.
        gpu: What it runs on.
        tp: GPUs of a replica.
        model_type: ``model_type`` of the model's config.json.

    Raises:
        PinnError: If the version is no release, or the table has no line.
    """
    numbers = release(version)
    for default in _of(engine, flag):
        if default.holds(numbers, gpu, tp, model_type, spread=""):
            return default
    raise PinnError(f"the default of {flag} in {engine} {version} is unknown: give the flag")


@lru_cache(maxsize=4096)
def release_kernels(
    engine: str, version: str, form: str, gpu: GpuSpec, spread: str
) -> Default | None:
    """Return a release's own default: the first line that fits, None where that was not read.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: Release as in ``--engine-version``.
        form: Number format of the experts' weights.
        gpu: What they run on.
        spread: ``tp`` where each expert is cut over tensor-parallel GPUs, ``ep`` where whole ones
            are spread over those, ``dp`` where over ranks of data parallelism.
    """
    lines = (line for line in kernel_defaults() if (line.engine, line.flag) == (engine, form))
    numbers = release(version)
    return next((line for line in lines if line.holds(numbers, gpu, 1, "", spread)), None)


def reference_version(engine: str) -> Default:
    """The release whose defaults hold where none is named."""
    return _of(engine, "engine_version")[0]


#: Engines as they write themselves.
_TITLES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


def served_release(engine: str, version: str) -> str:
    """The release whose defaults hold: the one that is named, else the newest that was read."""
    return version or reference_version(engine).value


def unread_notice(engine: str, version: str) -> str | None:
    """Return a note on a release outside those whose source was read; None within.

    The first line of the table holds for all before, the last for all after, so its defaults are
    those of the oldest or newest release that was read.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: As ``--engine-version``; empty for the release that the table names.

    >>> unread_notice("vllm", "99.1")  # doctest: +ELLIPSIS
    'vLLM 99.1 is unknown: using the defaults of ...'
    """
    oldest = _of(engine, "oldest_engine_version")
    if not version or not oldest:
        return None
    ends = oldest[0].value, reference_version(engine).value
    if release(ends[0]) <= release(version) <= release(ends[1]):
        return None
    holds = ends[0] if release(version) < release(ends[0]) else ends[1]
    return f"{_TITLES[engine]} {version} is unknown: using the defaults of {holds}"


def _default(row: dict[str, str]) -> Default:
    found: dict[str, Any] = {each.name: row.get(each.name) or "" for each in fields(Default)}
    for name in ("since", "until"):
        found[name] = release(found[name]) if found[name] else None
    for name in ("models", "spread"):
        found[name] = tuple(found[name].split())
    found["limits"] = tuple(
        (float(row.get(f"least_{name}") or 0), float(row.get(f"below_{name}") or math.inf))
        for name in ("gib", "capability", "tp")
    )
    return Default(**found | {"assumed": found["assumed"] == "yes"})


# Which releases of an engine were measured, in a few words for reports.

MEASURED_FILE = "measured.csv"
#: What stands for a release in an engine's own line of ``data/engines/measured.csv``.
ALL = "all"


def measured_line(engine: str, version: str) -> str:
    """Return a line with the engine's release and the measured releases of the training data.

    A release decides defaults, kernels and the schedule; coefficients are the same for all.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: As ``--engine-version``; empty for the release of the defaults.

    >>> measured_line("sglang", "0.5.23")
    'sglang 0.5.23, not measured: trained on releases 0.5.3rc1, 0.5.5, 0.5.6, 0.5.9'
    >>> measured_line("vllm", "0.15.1")
    'vllm 0.15.1, measured: trained on releases 0.10.2, 0.15.1 to 0.19.0'
    """
    runs = served_release(engine, version)
    rows = engine_rows(MEASURED_FILE)
    own = any(r["release"] == runs for r in rows if r["engine"] == engine)
    known = "measured" if own else "not measured"
    return f"{engine} {runs}, {known}: trained on releases {releases_text(engine)}"


@cache
def releases_text(engine: str) -> str:
    """Return the measured releases of an engine; empty if there are none.

    Three minor releases and more that follow each other are one stretch.

    >>> releases_text("vllm")
    '0.10.2, 0.15.1 to 0.19.0'
    """
    names = [r["release"] for r in engine_rows(MEASURED_FILE) if r["engine"] == engine]
    stretches: list[list[str]] = []
    for name in (n for n in names if n != ALL):
        if stretches and _follows(stretches[-1][-1], name):
            stretches[-1].append(name)
        else:
            stretches.append([name])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(part) for part in stretches
    )


def release_order(version: str) -> tuple[int, Release, str]:
    """All before releases, releases by number, and tags that name none at the end."""
    if version == ALL:
        return 0, (), version
    try:
        return 1, release(version), version
    except PinnError:
        return 2, (), version


def _follows(before: str, after: str) -> bool:
    first, second = release_order(before)[1], release_order(after)[1]
    return first[:1] == second[:1] and second[1:2] == tuple(n + 1 for n in first[1:2]) != ()


# What vLLM's releases schedule differently: a line for each change, with its source.

#: Batches that may hold a request's decodes while several stages of a pipeline are at work and
#: steps are planned ahead: one at a time, any, or those that lie as many steps apart as there are
#: stages, with one batch more in flight.
ONE_BATCH, ANY_BATCH, STAGGERED = "one_batch", "any_batch", "staggered"


@dataclass(frozen=True)
class SchedulerRules:
    """Rules of a scheduler that differ between its releases.

    Attributes:
        pipelined_decodes: ``ONE_BATCH``, ``ANY_BATCH`` or ``STAGGERED``.
        whole_prompts: Whether a waiting request needs room for all its tokens to be admitted, not
            only for its first chunk.
        uncached_first: Whether freed blocks in which no prefix can be found are the next to be
            taken; else they queue up behind all others.
        cuts_lone_prompts: Whether the longest chunk holds for the only request there is, too.
        awaits_preempted: Whether a preempted request is started again only when its batches in
            flight have ended.
        group_padding: Layers of the commoner kind over those of the rarer one up to which KV cache
            groups are as large as the former.
        windows_in_flight: Whether windows hold the tokens of all batches in flight; else of one.
        mixed_pages: Whether pages of several sizes lie side by side in a block.
        state_checkpoints: Mixers of which a state amid a prompt is kept, too, for its prefix.
        packs_sparse_keys: Whether fp8 keys of sparse attention are packed on every GPU.
        pads_eager_ranks: Whether data-parallel ranks are padded to the largest of them in steps
            that no CUDA graph holds, too, unless there are no graphs at all.
        paces_alone: Whether ``--prefill-schedule-interval`` holds without ranks in lockstep, too.
    """

    pipelined_decodes: str = ONE_BATCH
    whole_prompts: bool = False
    uncached_first: bool = False
    cuts_lone_prompts: bool = True
    awaits_preempted: bool = False
    group_padding: float = 1.25
    windows_in_flight: bool = False
    mixed_pages: bool = False
    state_checkpoints: str = ""
    packs_sparse_keys: bool = True
    pads_eager_ranks: bool = True
    paces_alone: bool = False


@lru_cache(maxsize=256)
def vllm_rules(release: Release) -> tuple[SchedulerRules, str]:
    """Rules of a release of vLLM and where they stand.

    Changes are lines of ``data/engines/scheduler_rules.csv``, each with the first release that was
    read with it; it holds for every patch of that release.
    """
    rules = SchedulerRules()
    sources = ["vllm 0.15.1 vllm/v1/core/sched/scheduler.py: Scheduler.schedule"]
    kinds = {each.name: each.type for each in fields(SchedulerRules)}
    for row in engine_rows("scheduler_rules.csv"):
        if release >= tuple(map(int, row["since"].split(".")))[:2]:
            change: dict[str, Any] = {row["rule"]: typed(kinds[row["rule"]], row["value"])}
            rules = replace(rules, **change)
            sources.append(f"vllm {row['since']} {row['source']}")
    return rules, "; ".join(sources)


# What really runs: an engine's flags and defaults as physical quantities.
#
# Costs, features and simulator read a recipe; none of them asks which engine it is.

#: Kinds of schedules: prompts and decodes in one step, or prompts in steps of their own.
FUSED, PREFILL_FIRST = "fused", "prefill_first"
#: What a request needs to be admitted: room for its next step, for a guess of what all running ones
#: will still write, or for whole outputs.
NEXT_STEP, ESTIMATE, COMPLETION = "next_step", "estimate", "completion"
#: What the memory share is of: all memory less a measured reserve, all memory, or what weights and
#: activations leave free.
TOTAL, STATIC, FREE = "total", "static", "free"
#: What of a step of decodes is launched as CUDA graphs: the whole, or the pieces between attention.
WHOLE, PIECES, NOTHING = "full", "piecewise", "none"
#: How tokens reach experts on other ranks: to those that need them, or to all.
ALL_TO_ALL, GATHER = "all_to_all", "gather"
#: How requests are spread over replicas.
LEAST_LOADED, ROUND_ROBIN = "least_loaded", "round_robin"

#: What set a field: a flag that was given, the engine's default, a default that nobody read in its
#: source, or the way the engine is built.
FLAG, DEFAULT, ASSUMED, DESIGN = "flag", "default", "assumed", "design"


@dataclass(frozen=True)
class Origin:
    """Origin of a field of a recipe.

    Attributes:
        kind: ``FLAG``, ``DEFAULT``, ``ASSUMED`` or ``DESIGN``.
        text: The flag, or the source of the default with its version.
    """

    kind: str
    text: str


class RecipeEntry(TypedDict):
    """One field of a resolved configuration: its value, what set it, and where that stands."""

    value: Any
    set_by: str
    source: str


@dataclass(frozen=True)
class EffectiveRecipe:
    """Resolved engine configuration of a deployment, in terms that all engines share.

    Parallel sizes are those of the layers: ``tensor_parallel_size`` GPUs share an attention layer,
    ``data_parallel_size`` such groups attend to requests of their own, and the experts of all
    those GPUs are spread over ``expert_parallel_size`` of them and cut
    ``expert_tensor_parallel_size`` times.

    Attributes:
        schedule: ``FUSED`` or ``PREFILL_FIRST``.
        token_budget: Tokens of a step of one replica; of a prefill step where those are apart.
        prompt_budget: Prompt tokens after which a prefill step takes no further request.
        chunked_prefill: Whether prompts are cut to fit the budget.
        chunk_multiple: What a chunk that is not a prompt's last is rounded down to, in tokens.
        max_requests: Running requests of one replica.
        admission: ``NEXT_STEP``, ``ESTIMATE`` or ``COMPLETION``.
        admission_share: Under ``ESTIMATE``, the share of an output that is expected at first.
        foresees_ends: Whether running requests count with all that they will still write, and are
            not decoded beyond their last token nor keep their places then (SGLang from 0.5.22).
        poll_interval: Decode steps between two looks at the queue of new requests.
        prompt_wait_steps: Steps that new prompts wait for others while decodes go on; 0 for none.
        prompt_wait_tokens: Tokens of a step that end the wait; under attention data parallelism a
            prompt for every replica does.
        overlap: Whether a step is planned while the one before runs.
        scheduler: How the scheduler does what its releases do in different ways.
        routing: How requests are spread over replicas: ``LEAST_LOADED`` or ``ROUND_ROBIN``.
        tensor_parallel_size: GPUs that share an attention layer.
        data_parallel_size: Groups of those.
        pipeline_parallel_size: Stages of layers.
        expert_parallel_size: GPUs over which whole experts are spread.
        expert_tensor_parallel_size: GPUs over which each expert is cut.
        expert_exchange: ``ALL_TO_ALL`` or ``GATHER``.
        kv_cache_dtype: Format of the KV cache; ``auto`` for what the checkpoint says.
        prefix_caching: Whether common prefixes are found.
        block_tokens: Tokens per block of the KV cache, which prefixes are found in.
        memory_share: Share of memory for weights and KV cache.
        memory_share_of: ``TOTAL``, ``STATIC`` or ``FREE``.
        sampler_bytes: Memory of a logit at the peak of sampling.
        counted_graphs: Layers whose CUDA graphs are taken off the share of memory: ``none``,
            ``experts`` (those with experts or latent attention) or ``all``.
        counts_longest_requests: Whether tokens of the cache are counted by requests of
            max_model_len.
        padded_width: Multiple that slices of mxfp4 experts are padded to by default.
        graph_tokens: Tokens of the largest step with prompts that is launched as CUDA graphs; 1
            where only decodes are, 0 without graphs.
        graph_requests: Decodes of the largest step without prompts that is; 0 for no limit.
        graph_sizes: Numbers of decodes that graphs are captured for and a step is rounded up to;
            empty where coefficients were fitted to steps that are not rounded.
        decode_graphs: ``WHOLE``, ``PIECES`` or ``NOTHING``; no coefficient depends on it.
        fused_all_reduce: Whether an all-reduce and the norm after it are one kernel.
        fused_all_reduce_bytes: Largest message of that kernel; 0 without it.
        fused_quantization: Whether that kernel quantizes its result, too.
        all_reduce_latency: Of a message up to 256 KiB, relative to vLLM's own kernel.
        compiled: Whether modules are compiled: fewer kernels are launched, with less Python.
        decode_kernels: Kernels of decode attention: ``AUTO`` or ``XQA``.
        moe_kernels: Kernels of the experts by the engine's own name for them; ``AUTO`` where that
            is not known.
        sampler: Family of the sampler's kernels.
        speculation: What speculative decoding drafts and verifies; None without it.
        origins: Field to what set it.
    """

    schedule: str
    token_budget: int
    prompt_budget: int
    chunked_prefill: bool
    chunk_multiple: int
    max_requests: int
    admission: str
    admission_share: float
    foresees_ends: bool
    poll_interval: int
    prompt_wait_steps: int
    prompt_wait_tokens: int
    overlap: bool
    scheduler: SchedulerRules
    routing: str
    tensor_parallel_size: int
    data_parallel_size: int
    pipeline_parallel_size: int
    expert_parallel_size: int
    expert_tensor_parallel_size: int
    expert_exchange: str
    kv_cache_dtype: str
    prefix_caching: bool
    block_tokens: int
    memory_share: float
    memory_share_of: str
    sampler_bytes: float
    counted_graphs: str
    counts_longest_requests: bool
    padded_width: int
    graph_tokens: int
    graph_requests: int
    graph_sizes: tuple[int, ...]
    decode_graphs: str
    fused_all_reduce: bool
    fused_all_reduce_bytes: float
    fused_quantization: bool
    all_reduce_latency: float
    compiled: bool
    decode_kernels: str
    moe_kernels: str
    sampler: str
    speculation: Speculation | None
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Fields that nobody set or read in the engine's source."""
        return tuple(name for name, origin in self.origins.items() if origin.kind == ASSUMED)

    def described(self) -> dict[str, RecipeEntry]:
        """Field to ``value``, ``set_by`` and ``source``, ready for JSON."""
        found: dict[str, RecipeEntry] = {}
        for name in _SETTLED:
            value, origin = getattr(self, name), self.origins[name]
            if isinstance(value, Speculation):
                value = value.described()
            elif isinstance(value, SchedulerRules):
                value = asdict(value)
            elif isinstance(value, tuple):
                value = list(value)
            found[name] = {"value": value, "set_by": origin.kind, "source": origin.text}
        return found


# Fields of a recipe while they are settled: flags, the engine's defaults, and what set each.

FLAGS = {each.name: each for each in flags_of(ServingSpec)}
_NOT_GIVEN = {name: Origin(DEFAULT, f"{flag.option} is not given") for name, flag in FLAGS.items()}
_KINDS = {f.name: f.type for f in fields(EffectiveRecipe) if f.name != "origins"}
_SETTLED = tuple(_KINDS)

#: Largest message of an engine's own all-reduce; beyond, all run NCCL's (vLLM's
#: custom_all_reduce.py: max_size = 8192 * 1024). That TensorRT-LLM's kernel takes as much is an
#: assumption.
OWN_KERNEL_BYTES = 2.0**23


@dataclass
class RecipeFields:
    """Fields of a recipe as they are settled, each with what set it.

    Attributes:
        serving: The engine's flags.
        gpu: What it runs on.
        model_type: ``model_type`` of the model's config.json where a default depends on it.
        values: Settled fields.
        origins: What set each of them.
    """

    serving: ServingSpec
    gpu: GpuSpec
    model_type: str
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Release whose defaults hold."""
        return served_release(self.serving.engine, self.serving.engine_version)

    def put(self, name: str, value: object, text: str, kind: str = DESIGN) -> None:
        """Settle a field."""
        self.values[name], self.origins[name] = value, Origin(kind, text)

    def put_design(self) -> None:
        """Settle what the way that an engine is built decides: ``data/engines/design.csv``."""
        for row in engine_rows("design.csv"):
            if row["engine"] == self.serving.engine:
                name, source = row["field"], row["source"].format(version=self.version)
                self.put(name, typed(_KINDS[name], row["value"]), source, row["set_by"])
        # An idea that is not shipped: prompts beyond the graphs of vLLM before 0.19 are launched as
        # slowly as modules that are not compiled (TTFT of Llama-3.3, MiniMax-M2.5 and Kimi-K2.5,
        # releases 0.10.2 to 0.18, each without itself).
        if self.serving.engine == "vllm" and release(self.version) < (0, 19):
            self.values["compiled"] = False

    def take(self, name: str, flag: str, read: Callable[[Any], object] | None = None) -> None:
        """Settle a field by a flag, or by its default."""
        value, self.origins[name] = self.look_up(flag)
        self.values[name] = value if read is None else read(value)

    def default(self, name: str) -> Default:
        """The line of the defaults' table that holds."""
        engine, tp = self.serving.engine, self.serving.tensor_parallel_size
        return engine_default(engine, name, self.version, self.gpu, tp, self.model_type)

    def take_default(self, name: str) -> None:
        """Settle a field that no flag sets by its default."""
        default = self.default(name)
        kind = ASSUMED if default.assumed else DEFAULT
        self.put(name, typed(_KINDS[name], default.value), default.source, kind)

    def look_up(self, name: str) -> tuple[Any, Origin]:
        """The value of a flag and what set it."""
        flag, given = FLAGS.get(name), getattr(self.serving, name, None)
        if given not in (None, "", "auto") and (flag is None or given != flag.default):
            return given, Origin(FLAG, flag.spelled_for(self.serving.engine) if flag else name)
        if flag is not None and flag.default not in (None, ""):
            return given, _NOT_GIVEN[name]
        found = self.default(name)
        value = flag.read(found.value) if flag else found.value == "yes"
        return value, Origin(ASSUMED if found.assumed else DEFAULT, found.source)

    def put_graphs(
        self, tokens: int, requests: int, sizes: Sequence[int], origin: Origin, decodes: str = WHOLE
    ) -> None:
        """Settle what is launched as CUDA graphs; nothing with ``--enforce-eager``."""
        if self.serving.enforce_eager:
            tokens, requests, sizes, decodes = 0, 0, (), NOTHING
            origin = self.look_up("enforce_eager")[1]
            self.values["compiled"] = False
            self.origins["compiled"] = origin
        names = ("graph_tokens", "graph_requests", "graph_sizes", "decode_graphs")
        self.values.update(zip(names, (tokens, requests, sizes, decodes), strict=True))
        self.origins.update(dict.fromkeys(names, origin))

    def recipe(self) -> EffectiveRecipe:
        """The recipe, once every field is settled."""
        origins = {name: self.origins[name] for name in _SETTLED}
        return EffectiveRecipe(**{name: self.values[name] for name in _SETTLED}, origins=origins)
