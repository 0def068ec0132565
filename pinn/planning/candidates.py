"""Find candidates: configurations that the engine starts, with room for the longest request."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pinn.engines.configurations import Values, canonical, make_deployment
from pinn.engines.deployment import Deployment
from pinn.engines.labels import hardware_label
from pinn.errors import PinnError, RefusedError
from pinn.planning.candidate import NETWORK, Candidate, gpu_count
from pinn.planning.plan import RejectedCandidate
from pinn.planning.search_space import SearchSpace, read_candidates_file
from pinn.simulator import memory, setup
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.workloads.workload import Workload
from pinn.surrogate.coefficient_set import CoefficientSet, read_coefficient_set

#: Contexts are allowed in steps of this many tokens.
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
    """Find the candidates that the engine would start.

    Args:
        rows: Configurations; those of the coefficient files come on top.
        space: What else holds for all of them.
        workload: Requests that have to fit, one at a time.
        checkpoint: Network that gives coefficients.
        coefficient_files: In its place for the deployments that they belong to.
        listed: Whether the user listed the rows, so that one that cannot be is an error.

    Raises:
        PinnError: If a listed row cannot be a deployment, or a file belongs to another model.
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
    found = list(predicted(fitting, files, checkpoint, space.engine))
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
    """Yield deployments of rows, and why the engine does not start or not serve a request.

    Args:
        rows: Configurations; of a grid those that make no sense are none.
        engine: Further engine settings.
        workload: Load whose longest request the context is chosen for.
        served: Load that has to fit in its place, one request at a time.
        listed: As of :func:`find_candidates`.
    """
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
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
            reason = str(refused) if refused else _misfit(deployment, to_hold, engine)
            yield given, deployment, reason


def _deployed(given: Values) -> tuple[Deployment, RefusedError | None]:
    """The deployment, and the engine's refusal, beside which it is named and never timed."""
    try:
        return make_deployment(given), None
    except RefusedError as error:
        return make_deployment({**given, "force": True}), error


def _context(longest: int, most: int) -> int:
    """A context that holds the longest request: the engine may start where the model's does not."""
    grains = -(-longest // _LENGTH_GRAIN_TOKENS)
    return max(min(grains * _LENGTH_GRAIN_TOKENS, most), longest)


def nearest_fit(space: SearchSpace, workload: Workload) -> str | None:
    """The fewest GPUs on which the model would start where it fits nowhere: more stages of them."""
    per_machine = read_candidates_file(None).gpus_per_machine
    shared: Values = {"engine": space.engines[0], "tensor_parallel_size": per_machine}
    every = itertools.product(space.bases, range(1, 17))
    rows = [{**base, **shared, "pipeline_parallel_size": stages} for base, stages in every]
    started = deployments_of(rows, space.engine, workload)
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
    fitting: Mapping[Deployment, Values],
    files: Mapping[Path, CoefficientSet],
    checkpoint: Path,
    engine: EngineSpec,
) -> Iterator[Candidate]:
    """Yield candidates of deployments, with coefficients of their file or of the network."""
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
