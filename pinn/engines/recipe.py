"""Resolved engine configuration ("recipe"): the flags, and a release's defaults for all others."""

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
from pinn.specs.serving import VLLM, ServingSpec
from pinn.specs.speculation import Speculation
from pinn.units import GIB

# Defaults of the engines, by engine, version, GPU, tensor parallelism and model.
#
# ``data/engines/defaults.csv`` lists every default once, with its source. The first matching row
# applies; an empty cell matches any value.

#: Numbers of an engine release, such as (0, 15, 1).
Release = tuple[int, ...]
#: Pattern of an engine's release, which may have a suffix.
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class Default:
    """One row of the table of defaults; an empty condition is always met.

    Attributes:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        flag: Field of ``ServingSpec``; for expert kernels, the number format of their weights.
        since: First release in which the default applies; None for no lower limit.
        until: First release in which the default no longer applies; None for no upper limit.
        gpu: Regular expression that matches part of the GPU's lower-case name; empty for any GPU.
        limits: Inclusive minimum and exclusive maximum of the GPU's memory in GiB, of its compute
            capability and of the tensor-parallel size.
        models: Values of ``model_type`` to which the default applies; empty for any.
        spread: Distributions of experts to which the default applies: any of ``tp``, ``ep`` and
            ``dp``; empty for all.
        value: Default value of the flag, as text.
        assumed: Whether the default is an assumption rather than read from the engine's source.
        source: Source of the default: release and file.
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
        """Return whether this default applies to a deployment."""
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
    """Return the numeric components of a version, without suffixes such as ``rc1``.

    Raises:
        PinnError: If the version does not begin with a number.

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
    """Return the rows of a table in ``data/engines``, in order; each file is read once."""
    return read_rows(data_folder("engines") / name)


def typed(kind: Any, text: str) -> object:
    """Convert a table cell to the type of a field; ``yes`` means true."""
    return text == "yes" if kind is bool else kind(text)


@cache
def all_defaults() -> tuple[Default, ...]:
    """Return every row of ``data/engines/defaults.csv``, in order."""
    return tuple(map(_default, engine_rows("defaults.csv")))


@cache
def kernel_defaults() -> tuple[Default, ...]:
    """Return every row of ``data/engines/expert_kernels.csv`` (``scripts/read_engines.py``)."""
    rows = engine_rows("expert_kernels.csv")
    return tuple(_default(row | {"flag": row["format"], "value": row["kernels"]}) for row in rows)


@cache
def _of(engine: str, flag: str) -> tuple[Default, ...]:
    return tuple(d for d in all_defaults() if (d.engine, d.flag) == (engine, flag))


@cache
def models_named(engine: str) -> frozenset[str]:
    """Return the ``model_type`` values for which an engine has special defaults."""
    return frozenset(m for d in all_defaults() if d.engine == engine for m in d.models)


@lru_cache(maxsize=16384)
def engine_default(
    engine: str, flag: str, version: str, gpu: GpuSpec, tp: int = 1, model_type: str = ""
) -> Default:
    """Return the default of a flag in a release, on a GPU and for a model.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        flag: Field of ``ServingSpec``.
        version: Release as in ``--engine-version``.
        gpu: GPU of the deployment.
        tp: Tensor-parallel size.
        model_type: ``model_type`` of the model's config.json.

    Raises:
        PinnError: If the version is not a release, or the table has no default that applies.
    """
    numbers = release(version)
    for default in _of(engine, flag):
        if default.holds(numbers, gpu, tp, model_type, spread=""):
            return default
    raise PinnError(f"the default of {flag} in {engine} {version} is unknown: give {flag}")


@lru_cache(maxsize=4096)
def release_kernels(
    engine: str, version: str, form: str, gpu: GpuSpec, spread: str
) -> Default | None:
    """Return the default expert kernels of a release; None if they are unknown.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: Release as in ``--engine-version``.
        form: Number format of the experts' weights.
        gpu: GPU of the deployment.
        spread: Distribution of the experts. With ``tp``, each expert is split over the
            tensor-parallel GPUs. Whole experts are distributed over these GPUs with ``ep``, and
            over data-parallel ranks with ``dp``.
    """
    lines = (line for line in kernel_defaults() if (line.engine, line.flag) == (engine, form))
    numbers = release(version)
    return next((line for line in lines if line.holds(numbers, gpu, 1, "", spread)), None)


def reference_version(engine: str) -> Default:
    """Return the table row of the release whose defaults apply if the user specifies no release."""
    return _of(engine, "engine_version")[0]


#: Names of the engines for display.
_TITLES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


def served_release(engine: str, version: str) -> str:
    """Return the release whose defaults apply: as given, or else the newest with known defaults."""
    return version or reference_version(engine).value


def unread_notice(engine: str, version: str) -> str | None:
    """Return a notice if the defaults of a release are unknown, otherwise None.

    Releases outside the known range get the defaults of the nearest known release.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: Value of ``--engine-version``; empty for the release of
            :func:`reference_version`.

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


# Measured releases of each engine, as text for reports.

MEASURED_FILE = "measured.csv"
#: Value that denotes all releases of an engine in ``data/engines/measured.csv``.
ALL = "all"


def measured_line(engine: str, version: str) -> str:
    """Return a sentence about the engine's release and the releases that were measured.

    The network is trained on measurements of vLLM; those of other engines are only compared with
    its predictions. The release determines defaults, kernels and scheduling. The step-time
    coefficients do not depend on it.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: Value of ``--engine-version``; empty for the release of
            :func:`reference_version`.

    >>> measured_line("sglang", "0.5.23")
    'sglang 0.5.23, not measured: trained on vLLM, compared with 0.5.3rc1, 0.5.5, 0.5.6, 0.5.9'
    >>> measured_line("vllm", "0.15.1")
    'vllm 0.15.1, measured: trained on releases 0.10.2, 0.15.1 to 0.19.0'
    """
    runs = served_release(engine, version)
    rows = engine_rows(MEASURED_FILE)
    own = any(r["release"] == runs for r in rows if r["engine"] == engine)
    known = "measured" if own else "not measured"
    use = "trained on releases" if engine == VLLM else "trained on vLLM, compared with"
    return f"{engine} {runs}, {known}: {use} {releases_text(engine)}"


@cache
def releases_text(engine: str) -> str:
    """Return the measured releases of an engine as text; empty if there are none.

    Three or more consecutive minor releases are written as a range.

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
    """Return a sort key: ``all`` first, then releases by number, then tags without a number."""
    if version == ALL:
        return 0, (), version
    try:
        return 1, release(version), version
    except PinnError:
        return 2, (), version


def _follows(before: str, after: str) -> bool:
    first, second = release_order(before)[1], release_order(after)[1]
    return first[:1] == second[:1] and second[1:2] == tuple(n + 1 for n in first[1:2]) != ()


# Differences between the schedulers of vLLM's releases, with their sources.

#: Batches in flight that may include a request's decodes, under pipeline parallelism with
#: asynchronous scheduling. ``ONE_BATCH``: only one of the batches in flight. ``ANY_BATCH``: all
#: batches in flight. ``STAGGERED``: one of every p consecutive batches, with p pipeline stages and
#: p + 1 batches in flight.
ONE_BATCH, ANY_BATCH, STAGGERED = "one_batch", "any_batch", "staggered"


@dataclass(frozen=True)
class SchedulerRules:
    """Scheduler rules that differ between releases.

    Attributes:
        pipelined_decodes: With pipeline stages, which of the batches in flight may include a
            request's decodes: ``ONE_BATCH``, ``ANY_BATCH`` or ``STAGGERED``.
        whole_prompts: Whether a request is admitted only if the cache has room for its whole
            prompt, not just for the first chunk.
        uncached_first: Whether freed blocks without a cached prefix are reused before all other
            free blocks, instead of after them.
        cuts_lone_prompts: Whether the chunk limit also applies if there is only one request.
        awaits_preempted: Whether a preempted request restarts only after its in-flight batches
            finish.
        group_padding: Ratio of the layers of the more frequent attention type to those of the rarer
            type, below which a KV cache group has as many layers as the more frequent type.
        windows_in_flight: Whether a sliding window reserves additional KV cache for the tokens of
            all batches in flight, instead of only one batch.
        mixed_pages: Whether a KV cache block can contain pages (the bytes of one layer) of several
            sizes.
        state_checkpoints: Types of recurrent layers, separated by spaces, that also keep states
            within a prompt, for prefix caching.
        packs_sparse_keys: Whether the packed fp8 format of sparse attention's keys is used on every
            GPU.
        pads_eager_ranks: Whether data-parallel ranks are padded to the largest rank even in steps
            without a CUDA graph. Ranks are never padded if graphs are disabled.
        paces_alone: Whether ``--prefill-schedule-interval`` also applies without data-parallel
            ranks in lockstep.
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
    """Return the scheduler rules of a vLLM release, and their sources as text.

    Each change between releases is a row of ``data/engines/scheduler_rules.csv``, with the first
    release that has it. The change applies to every patch of that release.
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


# Resolved settings: flags and defaults in engine-independent terms.
#
# Costs and features of steps, and the simulator, depend only on these settings, not on the engine's
# name.

#: Types of schedules: prompts and decodes share steps, or prompts have separate steps.
FUSED, PREFILL_FIRST = "fused", "prefill_first"
#: Admission policies: a request is admitted if the KV cache has room for its next step, for the
#: expected outputs of all running requests, or for their whole outputs.
NEXT_STEP, ESTIMATE, COMPLETION = "next_step", "estimate", "completion"
#: Meaning of ``memory_share``, a share of GPU memory: of all memory minus a measured reserve, of
#: all memory, or of the memory left free by weights and activations.
TOTAL, STATIC, FREE = "total", "static", "free"
#: Part of a decode step that runs as CUDA graphs: the whole step, the pieces between attention
#: layers, or nothing.
WHOLE, PIECES, NOTHING = "full", "piecewise", "none"
#: Exchange of tokens between expert ranks: each token goes only to the ranks with its experts, or
#: to all ranks.
ALL_TO_ALL, GATHER = "all_to_all", "gather"
#: Routing policies over data-parallel replicas: to the replica with the fewest requests, or to each
#: replica in turn.
LEAST_LOADED, ROUND_ROBIN = "least_loaded", "round_robin"

#: Origins of a resolved setting: a flag, the engine's default, an assumed default, or the engine's
#: design.
FLAG, DEFAULT, ASSUMED, DESIGN = "flag", "default", "assumed", "design"


@dataclass(frozen=True)
class Origin:
    """Origin of one setting in the resolved engine configuration.

    Attributes:
        kind: ``FLAG``, ``DEFAULT``, ``ASSUMED`` or ``DESIGN``.
        text: The flag, or the source of the default with its version.
    """

    kind: str
    text: str


class RecipeEntry(TypedDict):
    """One setting of a resolved engine configuration: value, type of origin, and source."""

    value: Any
    set_by: str
    source: str


@dataclass(frozen=True)
class EffectiveRecipe:
    """Resolved engine configuration of a deployment, in terms of settings common to all engines.

    Parallel sizes are those of the layers. ``tensor_parallel_size`` GPUs share an attention layer,
    and ``data_parallel_size`` groups of this size compute attention for different requests. Whole
    experts are distributed over ``expert_parallel_size`` GPUs, and each is split over
    ``expert_tensor_parallel_size`` GPUs.

    Attributes:
        schedule: Type of schedule: ``FUSED`` or ``PREFILL_FIRST``.
        token_budget: Maximum tokens per step of one replica; under ``PREFILL_FIRST``, per prefill
            step.
        prompt_budget: Number of prompt tokens at which a prefill step stops admitting requests.
        chunked_prefill: Whether prompts are split into chunks that fit into the token budget.
        chunk_multiple: Every chunk of a prompt except the last has a multiple of this number of
            tokens.
        max_requests: Maximum number of running requests per replica.
        admission: Admission rule: ``NEXT_STEP``, ``ESTIMATE`` or ``COMPLETION``.
        admission_share: Share of the maximum output length that ``ESTIMATE`` initially expects.
        foresees_ends: Whether admission counts the whole remaining output of running requests, and
            requests stop exactly at their last token (SGLang from 0.5.22).
        poll_interval: Number of decode steps between two polls of the queue of new requests.
        prompt_wait_steps: Number of decode steps that new prompts wait for further prompts; 0 for
            no wait.
        prompt_wait_tokens: Number of prompt tokens that end this wait; under attention data
            parallelism, one prompt per replica ends it.
        overlap: Whether a step is scheduled while the previous step runs.
        scheduler: Scheduler rules that differ between releases.
        routing: Policy for routing requests to replicas: ``LEAST_LOADED`` or ``ROUND_ROBIN``.
        tensor_parallel_size: GPUs that share an attention layer.
        data_parallel_size: Number of GPU groups that compute attention for different requests.
        pipeline_parallel_size: Number of pipeline stages of the layers.
        expert_parallel_size: Number of GPUs over which whole experts are distributed.
        expert_tensor_parallel_size: Number of GPUs over which each expert is split.
        expert_exchange: Exchange of tokens between expert ranks: ``ALL_TO_ALL`` or ``GATHER``.
        kv_cache_dtype: Number format of the KV cache; ``auto`` means the checkpoint's.
        prefix_caching: Whether prefixes that requests share are cached.
        block_tokens: Tokens per block of the KV cache, the unit of prefix caching.
        memory_share: Share of GPU memory that the engine may use for weights and KV cache.
        memory_share_of: Memory that the share refers to: ``TOTAL``, ``STATIC`` or ``FREE``.
        sampler_bytes: Peak bytes per logit during sampling.
        counted_graphs: Models whose CUDA graphs are subtracted from the memory share: ``none``,
            ``experts`` (models with experts or latent attention) or ``all``.
        counts_longest_requests: Whether the engine logs its KV cache size as the number of requests
            of max_model_len tokens that fit.
        padded_width: The inner width of mxfp4 experts, sliced over GPUs, is padded by default to a
            multiple of this number.
        graph_tokens: Maximum tokens of a step with prompts that runs as CUDA graphs; 1 if only
            decodes run as graphs, 0 without graphs.
        graph_requests: Maximum number of decodes in a decode-only step that runs as a CUDA graph; 0
            for no limit.
        graph_sizes: Numbers of decodes for which graphs are captured; a step is padded to the next
            one. Empty if coefficients were fitted to steps without padding.
        decode_graphs: Part of a decode step that runs as CUDA graphs: ``WHOLE``, ``PIECES`` or
            ``NOTHING``. The step-time coefficients do not depend on it.
        fused_all_reduce: Whether an all-reduce and the norm after it are one fused kernel.
        fused_all_reduce_bytes: Maximum message size of the fused kernel, in bytes; 0 without
            fusion.
        fused_quantization: Whether the fused kernel also quantizes its result.
        all_reduce_latency: Latency of an all-reduce of up to 256 KiB, relative to vLLM's own
            kernel.
        compiled: Whether eager launches are as fast as those of compiled modules, which have fewer
            kernels and less Python overhead.
        tf32: Whether fp32 matrix products run on the tensor cores, in TF32 or an equivalent split.
        decode_kernels: Kernels of decode attention: ``AUTO`` or ``XQA``.
        moe_kernels: The engine's name for the experts' kernels; ``AUTO`` if unknown.
        sampler: Family of kernels that the sampler uses.
        speculation: Settings of speculative decoding; None if it is disabled.
        origins: Origin of each setting, by field name.
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
    tf32: bool
    decode_kernels: str
    moe_kernels: str
    sampler: str
    speculation: Speculation | None
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Return the names of the settings whose values are assumptions."""
        return tuple(name for name, origin in self.origins.items() if origin.kind == ASSUMED)

    def described(self) -> dict[str, RecipeEntry]:
        """Return each setting's ``value``, ``set_by`` and ``source``, for JSON."""
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


# Settings of a configuration during resolution: values from flags and defaults, with origins.

FLAGS = {each.name: each for each in flags_of(ServingSpec)}
#: Origin of a flag at its default value, which the user may also have given explicitly.
_DEFAULTS = {name: Origin(DEFAULT, f"default of {flag.option}") for name, flag in FLAGS.items()}
_KINDS = {f.name: f.type for f in fields(EffectiveRecipe) if f.name != "origins"}
_SETTLED = tuple(_KINDS)

#: Maximum bytes of a message of an engine's own all-reduce; NCCL reduces larger messages (vLLM's
#: custom_all_reduce.py: max_size = 8192 * 1024). For TensorRT-LLM's kernel an equal limit is
#: assumed.
OWN_KERNEL_BYTES = 2.0**23


#: First vLLM release that launches steps with more prompt tokens than CUDA graphs cover as fast as
#: compiled modules.
_FAST_LAUNCHES = (0, 19)
#: Origin, as text, of the setting ``compiled`` in releases before ``_FAST_LAUNCHES``. Their slower
#: launches were inferred from measured TTFT, not from the engine's source.
_SLOW_LAUNCHES = (
    "vllm before 0.19 compiles its modules, but prefills of Llama-3.3, MiniMax-M2.5 and Kimi-K2.5 "
    "that exceed the CUDA graphs were as slow in 0.10.2 to 0.18 as without compilation. "
    "Inductor's runtime assertions, which 0.19.0 disables (vllm/config/compilation.py), explain a "
    "part: about 2 ms per forward pass of DeepSeek-R1"
)


@dataclass
class RecipeFields:
    """Settings of an engine configuration while it is resolved, each with its origin.

    Attributes:
        serving: Flags of the engine.
        gpu: GPU of the deployment.
        model_type: ``model_type`` of the model's config.json; empty if no default depends on it.
        values: Value of each resolved setting, by field name.
        origins: Origin of each resolved setting, by field name.
    """

    serving: ServingSpec
    gpu: GpuSpec
    model_type: str
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Return the engine's release whose defaults apply."""
        return served_release(self.serving.engine, self.serving.engine_version)

    def put(self, name: str, value: object, text: str, kind: str = DESIGN) -> None:
        """Set the value of a setting, with the kind and the text of its origin."""
        self.values[name], self.origins[name] = value, Origin(kind, text)

    def put_design(self) -> None:
        """Set the settings that an engine's design determines (``data/engines/design.csv``)."""
        for row in engine_rows("design.csv"):
            if row["engine"] == self.serving.engine:
                name, source = row["field"], row["source"].format(version=self.version)
                self.put(name, typed(_KINDS[name], row["value"]), source, row["set_by"])
        if self.serving.engine == "vllm" and release(self.version) < _FAST_LAUNCHES:
            self.put("compiled", False, _SLOW_LAUNCHES, ASSUMED)

    def take(self, name: str, flag: str, read: Callable[[Any], object] | None = None) -> None:
        """Set a setting to the value of a flag or, if it is not given, to the flag's default."""
        value, self.origins[name] = self.look_up(flag)
        self.values[name] = value if read is None else read(value)

    def default(self, name: str) -> Default:
        """Return the row of ``data/engines/defaults.csv`` that applies to a flag."""
        engine, tp = self.serving.engine, self.serving.tensor_parallel_size
        return engine_default(engine, name, self.version, self.gpu, tp, self.model_type)

    def take_default(self, name: str) -> None:
        """Set a setting that has no flag to the engine's default."""
        default = self.default(name)
        kind = ASSUMED if default.assumed else DEFAULT
        self.put(name, typed(_KINDS[name], default.value), default.source, kind)

    def look_up(self, name: str) -> tuple[Any, Origin]:
        """Return a flag's value, given or default, and the origin of the value."""
        flag, given = FLAGS.get(name), getattr(self.serving, name, None)
        if given not in (None, "", "auto") and (flag is None or given != flag.default):
            return given, Origin(FLAG, flag.spelled_for(self.serving.engine) if flag else name)
        if flag is not None and flag.default not in (None, ""):
            return given, _DEFAULTS[name]
        found = self.default(name)
        value = flag.read(found.value) if flag else found.value == "yes"
        return value, Origin(ASSUMED if found.assumed else DEFAULT, found.source)

    def put_graphs(
        self, tokens: int, requests: int, sizes: Sequence[int], origin: Origin, decodes: str = WHOLE
    ) -> None:
        """Set which steps run as CUDA graphs; with ``--enforce-eager`` none do."""
        if self.serving.enforce_eager:
            tokens, requests, sizes, decodes = 0, 0, (), NOTHING
            origin = self.look_up("enforce_eager")[1]
            self.values["compiled"] = False
            self.origins["compiled"] = origin
        names = ("graph_tokens", "graph_requests", "graph_sizes", "decode_graphs")
        self.values.update(zip(names, (tokens, requests, sizes, decodes), strict=True))
        self.origins.update(dict.fromkeys(names, origin))

    def recipe(self) -> EffectiveRecipe:
        """Build the resolved engine configuration from all settings."""
        origins = {name: self.origins[name] for name in _SETTLED}
        return EffectiveRecipe(**{name: self.values[name] for name in _SETTLED}, origins=origins)
