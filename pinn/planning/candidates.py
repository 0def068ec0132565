"""Candidates: everything the engine would start, with room for the longest request of the load."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from pinn.common.documents import read_yaml
from pinn.common.files import conf_file
from pinn.engines.configurations import canonical, expand_grid, make_deployment
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError, RefusedError
from pinn.planning.plan import LeftOut, Limits
from pinn.simulator import memory, setup
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run
from pinn.simulator.simulate import Hopeless, simulate
from pinn.simulator.workloads.load import Load
from pinn.simulator.workloads.workload import Workload, at_rate, mean_rate_per_s, repeated, thinned
from pinn.specs.serving import VLLM
from pinn.surrogate.coefficient_set import CoefficientSet, read_coefficient_set

# What a server is sent at any rate: the load's own requests, fewer or more of them.

#: Fewer requests than this say little about a percentile: a server that gets a smaller share of
#: the load is sent so many, at its own rate; a load that has fewer is sent again.
LEAST_REQUESTS = 2000
#: A load is sent again, too, at rates above the one asked for, so that it lasts as long; but where
#: it has more requests itself, up to so many.
MOST_REPEATED = 10_000


@dataclass(frozen=True)
class ReplicaLoad:
    """A load for one replica at any rate: common random numbers.

    Requests are left out one by one in a fixed random order, so that a lower rate has a part of
    the requests of a higher one, at the same times; where no more may be left out, or none is
    left to be sent, all times between requests change alike.

    Attributes:
        workload: The whole load.
        rate_per_s: Its mean rate.
        order: Place of each request in which it is kept: the first ones stay longest.
        least: Requests that are sent at least.
        most: And at most.
    """

    workload: Workload
    rate_per_s: float
    order: Int[np.ndarray, " n"]
    least: int
    most: int

    def at(self, rate_per_s: float) -> Workload:
        """What a server is sent at a mean rate, for as long as the load lasts."""
        count = round(len(self.workload) * rate_per_s / self.rate_per_s)
        count = min(max(count, self.least), self.most)
        if count > len(self.workload):
            return at_rate(repeated(self.workload, count), rate_per_s)
        return at_rate(thinned(self.workload, self.order < count), rate_per_s)


def replica_load(
    workload: Workload, seed: int, most: int | None = None, *, keep_all: bool = False
) -> ReplicaLoad:
    """The load of one server.

    Args:
        workload: The whole load, at the rate asked for or at its own.
        seed: Of the order in which requests are left out.
        most: Requests to send at most, for a quick look.
        keep_all: Whether none is left out at lower rates, where that many may be sent.
    """
    count = len(workload)
    order = np.random.default_rng(seed).permutation(count)
    most = max(count, MOST_REPEATED) if most is None else most
    least = min(max(LEAST_REQUESTS, count if keep_all else 0), most)
    return ReplicaLoad(workload, mean_rate_per_s(workload), order, least, most)


# What every task of a plan has to know.


@dataclass(frozen=True)
class Brief:
    """What is asked, with the data that answering takes.

    Attributes:
        draws: The load at the asked rate, drawn with one seed after another; the first is the load.
        rate_per_s: To be served in all; None for the frontier alone.
        limits: To be held.
        checkpoint: Whose intervals say how wrong a prediction may be.
        prices_per_gpu_hour: GPU -> price; empty where GPUs are counted.
        max_gpus: At most; None for any number.
        load: Where its requests come from.
    """

    draws: Sequence[Workload]
    rate_per_s: float | None
    limits: Limits
    checkpoint: Path
    prices_per_gpu_hour: Mapping[str, float]
    max_gpus: int | None
    load: Load

    @property
    def workload(self) -> Workload:
        """The load."""
        return self.draws[0]

    def replica_load(self, seed: int = 0, most: int | None = None) -> ReplicaLoad:
        """What one replica is sent, of one draw."""
        return replica_load(self.draws[seed], seed, most, keep_all=self.rate_per_s is None)

    def price_per_hour(self, gpu: str, gpus: int) -> float | None:
        """Of GPUs of a kind; None without prices."""
        return self.prices_per_gpu_hour[gpu] * gpus if self.prices_per_gpu_hour else None


NETWORK = "network"
#: Gives the coefficients that are simulated for the predicted ones.
Misjudge = Callable[[LinearLatency], LinearLatency]

#: Contexts are allowed in steps of this many tokens.
_LENGTH_GRAIN_TOKENS = 1024


@dataclass(frozen=True)
class Candidate:
    """A replica that could be rented.

    Attributes:
        configuration: Model, GPU, format and flags as :func:`canonical` gives them; flags that are
            not there have vLLM's defaults.
        latency: Its deployment's coefficients.
        engine: Further engine settings.
        source: ``network``, or the path of the coefficient file.
    """

    configuration: Mapping[str, Any]
    latency: LinearLatency
    engine: EngineSpec
    source: str = NETWORK

    @property
    def deployment(self) -> Deployment:
        """Model, GPU and configuration."""
        return self.latency.deployment

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return gpu_count(self.deployment)

    @property
    def hardware(self) -> tuple[Any, ...]:
        """What candidates that differ in the scheduler's limits alone have in common."""
        return (hardware_label(self.deployment), self.source)

    @property
    def label(self) -> str:
        """``H100-SXM TP 8 bf16, 8192 tokens, 256 requests``: at most of a step."""
        serving = self.deployment.recipe
        return (
            f"{hardware_label(self.deployment)}, {serving.token_budget} tokens, "
            f"{serving.max_requests} requests"
        )

    @property
    def prompt_latency(self) -> LinearLatency:
        """Coefficients of what computes prompts."""
        return self.latency

    def serve(
        self, workload: Workload, engine: EngineSpec, misjudge: Misjudge, hopeless: Hopeless | None
    ) -> Run:
        """Simulate replicas.

        Args:
            workload: What they are sent.
            engine: The candidate's, with their number and routing.
            misjudge: How far its coefficients are off.
            hopeless: When to give up, with a ``HopelessError``.
        """
        latency = misjudge(self.latency)
        return simulate(self.deployment, workload, latency, engine, hopeless=hopeless)

    def parts(self, run: Run) -> list[tuple[Run, LinearLatency]]:
        """Every kind of server of a run, with its coefficients; the one that decodes is last."""
        return [(run, self.latency)]

    def left_out(self, reason: str, *, simulated: bool = True) -> LeftOut:
        """It as no choice, and why."""
        return LeftOut(self.label, self.deployment.gpu.name, reason, simulated)


@dataclass(frozen=True)
class Wanted:
    """What candidates are made of.

    Attributes:
        shared: Keys that hold for all of them, such as the model and flags that were given.
        gpus: To choose from.
        formats: Number formats; None is the checkpoint's own.
        engine: Further engine settings.
        most_gpus: Of one replica; None for any number.
        engines: To choose from.
    """

    shared: Mapping[str, Any]
    gpus: Sequence[str]
    formats: Sequence[str | None]
    engine: EngineSpec
    most_gpus: int | None
    engines: Sequence[str] = (VLLM,)

    @property
    def bases(self) -> list[dict[str, Any]]:
        """What every candidate of a GPU and a format has."""
        return [
            {**self.shared, "gpu": gpu} | ({"precision": form} if form else {})
            for gpu, form in itertools.product(self.gpus, self.formats)
        ]


def gpu_count(deployment: Deployment) -> int:
    """GPUs of one replica: tensor x pipeline x data-parallel ranks."""
    recipe = deployment.recipe
    return recipe.tensor_parallel_size * recipe.pipeline_parallel_size * recipe.data_parallel_size


def hardware_label(deployment: Deployment) -> str:
    """GPU, parallelism of the attention, number formats and engine: ``H100-SXM TP 8 bf16``."""
    recipe, engine = deployment.recipe, deployment.serving.engine
    ranks = {"PP": recipe.pipeline_parallel_size, "DP": recipe.data_parallel_size}
    parts = [deployment.gpu.name, f"TP {recipe.tensor_parallel_size}"]
    parts += [f"{name} {size}" for name, size in ranks.items() if size > 1]
    parts += ["EP"] if recipe.expert_parallel_size > 1 else []
    parts += [format_label(deployment)]
    return " ".join(parts if engine == VLLM else [*parts, engine])


def format_label(deployment: Deployment) -> str:
    """Formats of attention and of what follows it, once where they are alike."""
    formats = deployment.model.precisions
    ffn = formats.dense_ffn if deployment.model.moe is None else formats.experts
    names = dict.fromkeys([formats.attention.name, ffn.name])
    cache = deployment.kv_cache_precision.name
    return "/".join(names) + (f" with {cache} cache" if cache not in names else "")


def read_grid(path: Path | None) -> tuple[dict[str, Any], int]:
    """Flags to combine, and the GPUs of a machine, of a file like ``conf/plan/candidates.yaml``.

    Raises:
        PinnError: If the file cannot be read or has another layout.
    """
    path = path or conf_file("plan/candidates.yaml")
    tree = read_yaml(path)
    layout = "expected 'gpus_per_machine: 8' and 'grid:' with lists under names of flags"
    if not isinstance(tree, dict) or set(tree) - {"pools"} != {"gpus_per_machine", "grid"}:
        raise PinnError(f"{path}: {layout}, got {tree!r:.80}")
    if not isinstance(tree["grid"], dict) or not isinstance(tree["gpus_per_machine"], int):
        raise PinnError(f"{path}: {layout}")
    return tree["grid"], tree["gpus_per_machine"]


def grid_configurations(wanted: Wanted, path: Path | None = None) -> list[dict[str, Any]]:
    """Every combination of the grid that makes sense; flags that were given stay as they are."""
    axes, per_machine = read_grid(path)
    axes = {name: values for name, values in axes.items() if name not in wanted.shared}
    every = itertools.product(wanted.bases, wanted.engines, expand_grid(axes))
    rows = [_spoken(engine, row) | base for base, engine, row in every]
    return [row for row in rows if _makes_sense(row, per_machine, wanted.most_gpus)]


def _spoken(engine: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Ranks of the grid, which counts as vLLM does, as an engine counts them.

    SGLang and TensorRT-LLM call all GPUs of a stage tensor parallel and take attention replicas
    from among them (``pinn.engines.recipe_rules``); TensorRT-LLM has as many of those as GPUs.
    """
    if engine == VLLM:
        return dict(row)
    replicas = row.get("data_parallel_size", 1)
    gpus = row.get("tensor_parallel_size", 1) * replicas
    spoken = {**row, "engine": engine, "tensor_parallel_size": gpus}
    if spoken.pop("enable_expert_parallel", False):
        spoken["ep_size"] = gpus
    if replicas > 1:
        spoken["enable_dp_attention"] = True
    return spoken


def _makes_sense(row: Mapping[str, Any], per_machine: int, most: int | None) -> bool:
    """Whether ranks stay in a machine and within reach, and experts have GPUs to spread over."""
    tensor, data = row.get("tensor_parallel_size", 1), row.get("data_parallel_size", 1)
    side_by_side = tensor * data if row.get("engine", VLLM) == VLLM else tensor
    gpus = side_by_side * row.get("pipeline_parallel_size", 1)
    spread = row.get("enable_expert_parallel", False) or "ep_size" in row
    fits = side_by_side <= per_machine and (most is None or gpus <= most)
    return fits and not (spread and side_by_side == 1)


def find_candidates(
    rows: Iterable[Mapping[str, Any]],
    wanted: Wanted,
    workload: Workload,
    checkpoint: Path,
    coefficient_files: Sequence[Path] = (),
    *,
    listed: bool = False,
) -> tuple[list[Candidate], list[LeftOut]]:
    """Candidates that the engine would start.

    Args:
        rows: Configurations; those of the coefficient files come on top.
        wanted: What the plan is for.
        workload: Whose requests have to fit, one at a time.
        checkpoint: Whose network gives coefficients.
        coefficient_files: In its place for the deployments that they belong to.
        listed: Whether the user listed the rows, so that one that cannot be is an error.

    Raises:
        PinnError: If a listed row cannot be a deployment, or a file belongs to another model.
    """
    files = {path: read_coefficient_set(path) for path in coefficient_files}
    rows = [*rows, *(dict(found.configuration()) | dict(wanted.shared) for found in files.values())]
    fitting: dict[Deployment, dict[str, Any]] = {}
    left_out: dict[str, LeftOut] = {}
    for row, deployment, reason in deployments_of(rows, wanted.engine, workload, listed=listed):
        if reason is None:
            fitting.setdefault(deployment, row)
        else:
            label = hardware_label(deployment)
            left_out.setdefault(label, LeftOut(label, deployment.gpu.name, reason, False))
    found = list(predicted(fitting, files, checkpoint, wanted.engine))
    _check_used(files, found)
    kept = {hardware_label(candidate.deployment) for candidate in found}
    return found, [each for each in left_out.values() if each.label not in kept]


def deployments_of(
    rows: Iterable[Mapping[str, Any]],
    engine: EngineSpec,
    workload: Workload,
    served: Workload | None = None,
    *,
    listed: bool = False,
) -> Iterator[tuple[dict[str, Any], Deployment, str | None]]:
    """Deployments of rows, and why the engine does not start or not serve the longest request.

    Args:
        rows: Configurations; of a grid those that make no sense are none.
        engine: Further engine settings.
        workload: For whose longest request the context is chosen.
        served: What has to fit in its place, one request at a time.
        listed: As of :func:`find_candidates`.
    """
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    for row in rows:
        given = canonical(row)
        try:
            deployment, refused = _asked(given)
            if "max_model_len" not in given:
                given["max_model_len"] = _context(longest, deployment.model.max_position)
                deployment, refused = _asked(given)
        except PinnError:
            if listed:
                raise
            continue
        if refused is not None and listed:
            raise refused
        dense = deployment.model.moe is None
        serving = deployment.recipe
        spread = serving.data_parallel_size > 1 or serving.expert_parallel_size > 1
        can_all_run = serving.max_requests <= serving.token_budget
        if listed or (can_all_run and not (dense and spread)):
            to_hold = workload if served is None else served
            reason = str(refused) if refused else _misfit(deployment, to_hold, engine)
            yield given, deployment, reason


def _asked(given: dict[str, Any]) -> tuple[Deployment, RefusedError | None]:
    """The deployment, and the engine's refusal, beside which it is named and never timed."""
    try:
        return make_deployment(given), None
    except RefusedError as error:
        return make_deployment({**given, "force": True}), error


def _context(longest: int, most: int) -> int:
    """A context that holds the longest request: the engine may start where the model's does not."""
    grains = -(-longest // _LENGTH_GRAIN_TOKENS)
    return max(min(grains * _LENGTH_GRAIN_TOKENS, most), longest)


def nearest_fit(wanted: Wanted, workload: Workload) -> str | None:
    """The fewest GPUs on which the model would start where it fits nowhere: more stages of them."""
    _, per_machine = read_grid(None)
    shared = {"engine": wanted.engines[0], "tensor_parallel_size": per_machine}
    every = itertools.product(wanted.bases, range(1, 17))
    rows = [{**base, **shared, "pipeline_parallel_size": stages} for base, stages in every]
    started = deployments_of(rows, wanted.engine, workload)
    found = [(gpu_count(d), hardware_label(d)) for _, d, reason in started if reason is None]
    if not found:
        return None
    gpus, label = min(found)
    return f"{label}, {gpus} GPUs a replica"


def _misfit(deployment: Deployment, workload: Workload, engine: EngineSpec) -> str | None:
    try:
        setup.check_run(deployment, workload, engine, memory.kv_layout(deployment, engine))
    except PinnError as error:
        return str(error)
    return None


def predicted(
    fitting: Mapping[Deployment, Mapping[str, Any]],
    files: Mapping[Path, CoefficientSet],
    checkpoint: Path,
    engine: EngineSpec,
) -> Iterator[Candidate]:
    """Candidates of deployments, with the coefficients of their file or of the network."""
    from pinn.surrogate.surrogate import Surrogate

    if not fitting:
        return
    coefficients = Surrogate.load(checkpoint).coefficients(list(fitting))
    for i, (deployment, row) in enumerate(fitting.items()):
        beta, alpha, source = coefficients.beta[i], coefficients.alpha[i], NETWORK
        path = next((p for p, found in files.items() if _belongs(found, deployment)), None)
        if path is not None:
            beta, alpha, source = files[path].beta, files[path].alpha, str(path)
        yield Candidate(row, LinearLatency(deployment, beta, alpha), engine, source)


def _belongs(found: CoefficientSet, deployment: Deployment) -> bool:
    try:
        found.check_deployment(deployment, "")
    except PinnError:
        return False
    return True


def _check_used(files: Mapping[Path, CoefficientSet], candidates: Sequence[Candidate]) -> None:
    used = {candidate.source for candidate in candidates}
    for path, found in files.items():
        if str(path) not in used:
            what = f"{found.deployment.get('model')} on {found.deployment.get('gpu')}"
            raise PinnError(
                f"{path} holds coefficients of {what}, which is no candidate: plan for that model "
                "and GPU, or leave the file out"
            )
