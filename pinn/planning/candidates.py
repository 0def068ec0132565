"""Candidates of a plan: combinations of flags with which the engine starts and serves the load."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pinn.common.files import conf_file
from pinn.engines.configurations import Values, canonical, expand_grid, make_deployment
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.labels import hardware_label
from pinn.errors import PinnError, RefusedError
from pinn.memory.kv_cache import kv_layout
from pinn.memory.start_up import check_starts
from pinn.planning.candidate import NETWORK, Candidate, gpu_count
from pinn.planning.plan import RejectedCandidate
from pinn.simulator import setup
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.workloads.workload import Workload
from pinn.simulator.workloads.yaml_spec import Strict, Whole, check, read_mapping
from pinn.specs.flags import FlagValue
from pinn.specs.request_media import RequestMedia
from pinn.specs.serving import VLLM
from pinn.surrogate.coefficient_set import CoefficientSet, read_coefficient_set
from pinn.surrogate.encoder_time import encoder_time

LAYOUT = (
    "write 'gpus_per_machine: 8' and 'grid:' with a list of values for each "
    "flag; with --disaggregate also 'pools:' with lists of workers, such as 2x "
    "tp=4, for 'prefill' and 'decode'"
)


@dataclass(frozen=True)
class SearchSpace:
    """Values of flags and GPUs from which candidates are combined.

    Attributes:
        shared: Configuration that all candidates share, such as the model and the user's flags.
        gpus: GPUs to choose from.
        formats: Number formats; None means the checkpoint's own format.
        engine: Engine settings of all simulations.
        most_gpus: Maximum number of GPUs of one replica; None for no limit.
        engines: Engines to choose from.
        sizes: Tensor-parallel sizes that the user specified; None means the size in ``shared`` or,
            if it has none, the sizes in the file of candidates.
        media: Images or audio clips of each request; None if requests have no media.
    """

    shared: Values
    gpus: Sequence[str]
    formats: Sequence[str | None]
    engine: EngineSpec
    most_gpus: int | None
    engines: Sequence[str] = (VLLM,)
    sizes: Sequence[int | None] = (None,)
    media: RequestMedia | None = None

    @property
    def given(self) -> list[dict[str, FlagValue]]:
        """Shared configuration, repeated for each tensor-parallel size in ``sizes``."""
        named = ({} if size is None else {"tensor_parallel_size": size} for size in self.sizes)
        return [{**self.shared, **size} for size in named]

    @property
    def bases(self) -> list[dict[str, FlagValue]]:
        """Configurations, one for each GPU, format and tensor-parallel size, without grid flags."""
        return [
            {**given, "gpu": gpu} | ({"precision": form} if form else {})
            for gpu, form, given in itertools.product(self.gpus, self.formats, self.given)
        ]


class Pools(Strict):
    """Prefill and decode pools to combine, in the notation of ``--prefill`` and ``--decode``."""

    prefill: list[str]
    decode: list[str]


class CandidatesFile(Strict):
    """Layout of a file like ``conf/plan/candidates.yaml``.

    Attributes:
        gpus_per_machine: Number of GPUs per machine. The tensor- and data-parallel ranks of a
            pipeline stage share one machine.
        grid: Values to try, by flag.
        pools: Workers of a replica with disaggregated prefill/decode.
    """

    gpus_per_machine: Whole
    grid: dict[str, object]
    pools: Pools | None = None


def read_candidates_file(path: Path | None) -> CandidatesFile:
    """Read the flags and pools to combine.

    Args:
        path: File to read; None for ``conf/plan/candidates.yaml``.

    Raises:
        PinnError: If the file cannot be read or does not have this layout.
    """
    path = path or conf_file("plan/candidates.yaml")
    return check(CandidatesFile, read_mapping(path), path, LAYOUT)


def grid_configurations(space: SearchSpace, path: Path | None = None) -> list[dict[str, FlagValue]]:
    """Return all sensible combinations of the file's flags; the user's flags are not varied."""
    listed = read_candidates_file(path)
    axes = {name: values for name, values in listed.grid.items() if name not in space.given[0]}
    every = itertools.product(space.bases, space.engines, expand_grid(axes))
    rows = [_in_words_of(engine, row) | base for base, engine, row in every]
    return [row for row in rows if _makes_sense(row, listed.gpus_per_machine, space.most_gpus)]


def _in_words_of(engine: str, row: Values) -> dict[str, FlagValue]:
    """Convert a configuration with vLLM's parallel sizes to the flags of another engine.

    In SGLang and TensorRT-LLM the tensor-parallel size counts all GPUs of a stage, and attention
    replicas are groups of these GPUs (``pinn.engines.recipe_rules``). In TensorRT-LLM the number of
    attention replicas equals the number of these GPUs.
    """
    if engine == VLLM:
        return dict(row)
    replicas = _ranks(row, "data_parallel_size")
    gpus = _ranks(row, "tensor_parallel_size") * replicas
    renamed = {**row, "engine": engine, "tensor_parallel_size": gpus}
    if renamed.pop("enable_expert_parallel", False):
        renamed["ep_size"] = gpus
    if replicas > 1:
        renamed["enable_dp_attention"] = True
    return renamed


def _ranks(row: Values, name: str) -> int:
    return cast(int, row.get(name, 1))


def _makes_sense(row: Values, per_machine: int, most: int | None) -> bool:
    """Return whether a configuration's ranks fit in one machine and the maximum number of GPUs.

    Expert parallelism also needs more than one rank, and each request of a step at least one token
    of the token budget.
    """
    tokens, requests = (row.get(name) for name in ("max_num_batched_tokens", "max_num_seqs"))
    if isinstance(tokens, int) and isinstance(requests, int) and tokens < requests:
        return False
    tensor, data = _ranks(row, "tensor_parallel_size"), _ranks(row, "data_parallel_size")
    side_by_side = tensor * data if row.get("engine", VLLM) == VLLM else tensor
    gpus = side_by_side * _ranks(row, "pipeline_parallel_size")
    spread = row.get("enable_expert_parallel", False) or "ep_size" in row
    fits = side_by_side <= per_machine and (most is None or gpus <= most)
    return fits and not (spread and side_by_side == 1)


#: Context lengths are rounded up to a multiple of this number of tokens.
_LENGTH_GRAIN_TOKENS = 1024


def find_candidates(
    rows: Iterable[Values],
    space: SearchSpace,
    workload: Workload,
    checkpoint: Path,
    coefficient_files: Sequence[Path] = (),
    *,
    listed: bool = False,
) -> tuple[list[Candidate], list[RejectedCandidate]]:
    """Return the candidates with which the engine would start, and the rejected candidates.

    Args:
        rows: Configurations; configurations of the coefficient files are added.
        space: Flags and settings of all candidates.
        workload: Requests, each of which must fit on an idle server.
        checkpoint: Checkpoint of the network that predicts coefficients.
        coefficient_files: Files that replace the network for their own deployments.
        listed: Whether the user listed the configurations, so that an invalid one is an error.

    Raises:
        PinnError: If a listed configuration is not a valid deployment, or a file belongs to another
            model.
    """
    files = {path: read_coefficient_set(path) for path in coefficient_files}
    rows = [*rows, *(dict(found.configuration()) | dict(space.shared) for found in files.values())]
    fitting: dict[Deployment, Values] = {}
    rejected: dict[str, RejectedCandidate] = {}
    for row, deployment, reason in deployments_of(rows, space.engine, workload, listed=listed):
        if reason is None:
            fitting.setdefault(deployment, row)
        else:
            label = hardware_label(deployment)
            rejected.setdefault(label, RejectedCandidate(label, deployment.gpu.name, reason, False))
    found = list(predicted(fitting, files, checkpoint, space))
    _check_used(files, found)
    kept = {hardware_label(candidate.deployment) for candidate in found}
    return found, [each for each in rejected.values() if each.label not in kept]


def deployments_of(
    rows: Iterable[Values],
    engine: EngineSpec,
    workload: Workload,
    served: Workload | None = None,
    *,
    listed: bool = False,
) -> Iterator[tuple[Values, Deployment, str | None]]:
    """Yield each configuration with its deployment.

    The third item is the reason why the deployment cannot serve the load; None if it can.

    Args:
        rows: Configurations; invalid configurations are skipped unless they are listed.
        engine: Engine settings of the simulation.
        workload: Load whose longest request determines the context length.
        served: Load whose requests must each fit on an idle server; ``workload`` by default.
        listed: Whether the user listed the configurations, so that an invalid one is an error.
    """
    longest = int((workload.prompt_tokens + workload.generated_tokens).max())
    for row in rows:
        given = canonical(row)
        try:
            deployment, refused = _deployed(given)
            if "max_model_len" not in given:
                given["max_model_len"] = _context(longest, deployment.model.max_position)
                deployment, refused = _deployed(given)
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
            reason = str(refused) if refused else _refusal(_check_held, deployment, to_hold, engine)
            if reason is None and not given.get("force"):
                reason = _refusal(check_starts, deployment, engine)
            yield given, deployment, reason


def _deployed(given: Values) -> tuple[Deployment, RefusedError | None]:
    """Return the deployment of a configuration, and the error if the engine does not support it.

    An unsupported deployment is only listed in the plan; its times are not predicted.
    """
    try:
        return make_deployment(given), None
    except RefusedError as error:
        return make_deployment({**given, "force": True}), error


def _context(longest: int, most: int) -> int:
    """Return a context length sufficient for the longest request, in tokens, rounded up.

    The result exceeds ``most``, the model's maximum, only if the request itself does.
    """
    grains = -(-longest // _LENGTH_GRAIN_TOKENS)
    return max(min(grains * _LENGTH_GRAIN_TOKENS, most), longest)


def nearest_fit(space: SearchSpace, workload: Workload) -> str | None:
    """Return a description of the smallest replica on which the model starts.

    The replica has up to 16 pipeline stages. Return None if the model starts on no such replica.
    """
    per_machine = read_candidates_file(None).gpus_per_machine
    shared: Values = {"engine": space.engines[0], "tensor_parallel_size": per_machine}
    every = itertools.product(space.bases, range(1, 17))
    rows = [{**base, **shared, "pipeline_parallel_size": stages} for base, stages in every]
    started = deployments_of(rows, space.engine, workload)
    found = [(gpu_count(d), hardware_label(d)) for _, d, reason in started if reason is None]
    if not found:
        return None
    gpus, label = min(found)
    return f"{label}, {gpus} GPUs per replica"


def _check_held(deployment: Deployment, workload: Workload, engine: EngineSpec) -> None:
    setup.check_run(deployment, workload, engine, kv_layout(deployment, engine))


def _refusal(check: Callable[..., object], *given: object) -> str | None:
    """Run a check and return its error message; None if the check passes."""
    try:
        check(*given)
    except PinnError as error:
        return str(error)
    return None


def predicted(
    fitting: Mapping[Deployment, Values],
    files: Mapping[Path, CoefficientSet],
    checkpoint: Path,
    space: SearchSpace,
) -> Iterator[Candidate]:
    """Yield a candidate for each deployment, with coefficients from a file or from the network."""
    from pinn.surrogate.surrogate import Surrogate

    if not fitting:
        return
    coefficients = Surrogate.load(checkpoint).coefficients(list(fitting))
    for i, (deployment, row) in enumerate(fitting.items()):
        beta, alpha, source = coefficients.beta[i], coefficients.alpha[i], NETWORK
        for path, own in files.items():
            if _refusal(own.check_deployment, deployment, "") is None:
                beta, alpha, source = own.beta, own.alpha, str(path)
                break
        encoder = encoder_time(deployment, space.media, checkpoint)
        latency = LinearLatency(deployment, beta, alpha, encoder)
        yield Candidate(row, latency, space.engine, source)


def _check_used(files: Mapping[Path, CoefficientSet], candidates: Sequence[Candidate]) -> None:
    used = {candidate.source for candidate in candidates}
    for path, found in files.items():
        if str(path) in used:
            continue
        model, gpu = (found.deployment.get(name) for name in ("model", "gpu"))
        for each in (candidate.deployment for candidate in candidates):
            if (each.model.name, each.gpu.name) == (model, gpu):
                found.check_deployment(each, str(path))  # raises an error that names the difference
        raise PinnError(
            f"{path} has coefficients of {model} on {gpu}, which is not a candidate: "
            "plan for that model and GPU, or omit the file"
        )
