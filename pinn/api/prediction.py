"""Coefficients, step times and intervals of one configuration or many configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.api.arguments import python_names, read_request, with_arguments
from pinn.api.requests import ManyRequest, PredictionRequest, named
from pinn.calibration.load_range import batch_warnings
from pinn.common.files import find_checkpoint
from pinn.common.numbers import amount
from pinn.engines.configurations import (
    Values,
    canonical,
    expand_grid,
    is_own_id,
    make_deployment,
    typed_configurations,
)
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError, warn_user
from pinn.memory.start_up import start_up
from pinn.memory.startup_log import read_startup_log
from pinn.specs.batch import parse_batch
from pinn.specs.serving import ServingSpec
from pinn.surrogate.coefficient_set import (
    NAMED,
    CoefficientSet,
    deployment_facts,
    read_coefficient_set,
)
from pinn.surrogate.encoder_time import asked_encoder
from pinn.surrogate.evidence import FindEvidence, file_evidence
from pinn.surrogate.prediction import Prediction
from pinn.surrogate.surrogate import Surrogate
from pinn.surrogate.uncertainty.network_evidence import network_evidence

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from pinn.engines.configurations import Configuration

    #: One or more configurations: a table, its rows, a grid (a list of values per key, as a mapping
    #: or text), or the path of a file with any of these.
    AnyConfigurations = pd.DataFrame | Iterable[Configuration] | Configuration | str | Path

#: Default batches for step time predictions.
EXAMPLES = (
    "1 decode @ 700",
    "32 decode @ 700",
    "256 decode @ 2000",
    "1 prefill 2048 @ 0",
    "1 prefill 512 @ 0 + 16 decode @ 600",
)
#: Default batches for models that do not generate tokens.
POOLED_EXAMPLES = ("1 prefill 512 @ 0", "16 prefill 512 @ 0")


@with_arguments(ServingSpec, request=PredictionRequest, deploys=True)
def predict(
    model: str | Path | None = None, gpu: str | Path | None = None, **given: object
) -> Prediction:
    """Predict coefficients and step times of a model on a GPU, as ``pinn coefficients`` does.

    >>> p = predict("meta-llama/Llama-3.1-8B", "H100", max_num_seqs=256)
    >>> low, high = p.interval("32 decode @ 700")
    >>> p.floor("32 decode @ 700") < low < p.step_time("32 decode @ 700") < high
    True
    >>> predict("meta-llama/Llama-3.1-8B", "H100", tensor_parallel=2)
    Traceback (most recent call last):
    pinn.errors.PinnError: the flag 'tensor_parallel' is unknown: did you mean tensor_parallel_size?

    Args:
        model: Name, or path of a config.json or its folder.
        gpu: Name, or path of a datasheet's JSON file.
        **given: Keyword arguments listed below; engine flags that are not given have the engine's
            defaults.

    Raises:
        PinnError: If model, GPU or a flag is unknown, or they are incompatible.
    """
    asked, flags = read_request(PredictionRequest, given, ServingSpec, model=model, gpu=gpu)
    wanted = named(asked.model, asked.gpu) | flags
    if asked.coefficients is not None:
        found = read_coefficient_set(asked.coefficients)
        configuration = canonical(found.configuration() | wanted)
        deployment = make_deployment(configuration)
        found.check_deployment(deployment, str(asked.coefficients))
        predicted = file_prediction(_with_names(found, configuration), deployment)
    else:
        configuration = canonical(wanted)
        deployment, checkpoint = make_deployment(configuration), find_checkpoint(asked.checkpoint)
        predicted = network_prediction(checkpoint, deployment, configuration)
    if asked.images_per_request or asked.audio_seconds or asked.audios_per_request != 1:
        encoder = asked_encoder(deployment, asked, asked.checkpoint)
        predicted = replace(predicted, encoder=encoder)
    if asked.batch:
        predicted = predicted.at(*asked.batch)
    if asked.coefficients is not None:
        batches = [*map(parse_batch, predicted.batches)]
        for text in batch_warnings(predicted.coefficients, batches):
            warn_user(text)
    if asked.memory_log is None:
        return predicted
    return replace(predicted, memory=start_up(deployment, read_startup_log(asked.memory_log)))


def network_prediction(
    checkpoint: Path, deployment: Deployment, configuration: Mapping[str, object] | None = None
) -> Prediction:
    """Return a network's prediction of a deployment's step time coefficients and intervals.

    Args:
        checkpoint: Path of the trained network.
        deployment: Deployment to predict.
        configuration: Configuration of the deployment as the user wrote it; the JSON output uses
            its names of model, GPU and format.
    """
    network = Surrogate.load(checkpoint)
    found = CoefficientSet(
        deployment_facts(deployment), network.coefficients([deployment]), network.taught_alphas()
    )
    found = _with_names(found, configuration or {})
    return _prediction(found, deployment, partial(network_evidence, checkpoint, found, deployment))


def file_prediction(found: CoefficientSet, deployment: Deployment) -> Prediction:
    """Return the prediction of a coefficient file, with intervals if the file has a posterior."""
    if found.covariance is None:
        return _prediction(found, deployment, lambda _: file_evidence(found))
    from pinn.calibration.posterior import posterior_evidence

    return _prediction(found, deployment, partial(posterior_evidence, found, deployment))


def _prediction(
    found: CoefficientSet, deployment: Deployment, evidence: FindEvidence
) -> Prediction:
    examples = POOLED_EXAMPLES if deployment.model.pooled else EXAMPLES
    return Prediction(deployment, found, start_up(deployment), evidence, examples)


def _with_names(found: CoefficientSet, configuration: Mapping[str, object]) -> CoefficientSet:
    """Set model, GPU and weight format of a coefficient set to the names that the user gave."""
    names = {k: configuration[k] for k in NAMED if k in configuration}
    return replace(found, deployment=found.deployment | {"named": names})


@with_arguments(ServingSpec, request=ManyRequest, deploys=True)
def predict_many(
    configurations: AnyConfigurations, batch: str | Sequence[str] = (), **given: object
) -> pd.DataFrame:
    """Predict coefficients of many configurations, as ``pinn coefficients --out`` does.

    >>> import pandas as pd
    >>> wanted = pd.DataFrame({"gpu": ["H100", "H200"], "tensor_parallel_size": [1, 2]})
    >>> found = predict_many(wanted, "32 decode @ 700", model="meta-llama/Llama-3.1-8B")
    >>> found[["gpu", "tensor_parallel_size"]].values.tolist()
    [['H100', 1], ['H200', 2]]
    >>> bool(found["step_time_us: 32 decode @ 700"].is_monotonic_decreasing)
    True

    Args:
        configurations: A DataFrame or an iterable of mappings with model, gpu and the engine's
            flags as keys; a mapping of lists, whose combinations are all predicted; such a mapping
            as a string (``"gpu=H100,H200 tensor_parallel_size=1,2"``); or a CSV, YAML or JSON file.
        batch: One or several batches to time; each has its own columns, in microseconds.
        **given: Keyword arguments listed below; model, GPU and engine flags apply to rows that do
            not set them.

    Returns:
        Table with one row per configuration, in the given order and with the index of a given
        DataFrame. The first columns are the user's identifiers (columns named ``id`` or ``..._id``,
        with the values and dtype of a given DataFrame), followed by model, GPU and flags in a fixed
        order, under their names in the input; a column without values is kept.
        Coefficients are in the columns ``beta.NAME [unit]`` and ``alpha.NAME [unit]``, in SI units.
        For each batch, columns contain the step time, its 90 % interval, the roofline lower bound,
        whether the batch fits in the KV cache (``fits_kv_cache``, null without a cache) and marks
        (limits that the batch exceeds). They are followed by ``starts`` (whether the engine
        certainly starts), ``verdict`` (``starts``, ``may not start``, ``does not start`` or, for a
        row without predictions, ``invalid``), ``reason`` (null if the engine starts), ``fits``
        (whether it starts with the predicted memory), the KV tokens with their bounds, the smallest
        tensor-parallel size, and the number format of the KV cache. The last columns are the
        nearest measured deployment, the ``distance`` of the network's inputs from it (Euclidean, in
        standard deviations of each input), and the inputs outside the training range. They do not
        include the distance from measured kernels: for a row,
        ``predict(...).evidence.distance["beyond_left_out"]`` is true outside the evaluated range.
        With ``skip_invalid``, configurations that the engine rejects or that cannot be predicted
        have a reason instead of predictions; a warning states their number.

    Raises:
        PinnError: If a row has an unknown key; without ``skip_invalid`` also if it has a value of
            the wrong type, the engine rejects it, or its model or GPU is unknown.
    """
    table, reasons = arrow_table(configurations, batch, given)
    if reasons:
        verb = "is" if len(reasons) == 1 else "are"
        counted = f"{len(reasons):,} of {amount(len(table), 'configuration')} {verb} invalid"
        first = _in_python(reasons[0])
        warn_user(f"{counted}: the column 'reason' gives the reason for each, for example: {first}")
    found = as_frame(table, configurations)
    said = {text: _in_python(text) for text in found["reason"].dropna().unique()}
    return found.assign(reason=found["reason"].replace(said))


def _in_python(reason: str) -> str:
    """Return a table's reason with names of arguments instead of flags."""
    return python_names(reason.removeprefix("the flag "), predict_many)


def as_frame(table: pa.Table, configurations: AnyConfigurations) -> pd.DataFrame:
    """Return a table as a DataFrame, with index and identifiers of a given DataFrame."""
    import pandas as pd
    import pyarrow as pa

    found: pd.DataFrame = table.to_pandas()
    for column in table.schema:
        if pa.types.is_boolean(column.type) and table[column.name].null_count:
            found[column.name] = found[column.name].astype("boolean")
    if isinstance(configurations, pd.DataFrame):
        found.index = configurations.index
        for name in filter(is_own_id, map(str, configurations)):
            found[name] = configurations[name].array
    return found


def arrow_table(
    configurations: AnyConfigurations, batch: str | Sequence[str], given: Mapping[str, object]
) -> tuple[pa.Table, list[str]]:
    """Return the table of :func:`predict_many`, and the reason for each rejected row."""
    from pinn.export.coefficient_table import many_table

    own = {"configurations": configurations, "batch": batch}
    asked, flags = read_request(ManyRequest, given, ServingSpec, **own)
    shared = canonical(flags | named(asked.model, asked.gpu))
    spelled: dict[str, str] = {}
    rows = [shared | row for row in configuration_rows(configurations, spelled)]
    keys, names = ("model", "gpu", *shared, *spelled), _row_names(configurations, len(rows))
    settings = asked.checkpoint, asked.skip_invalid, spelled
    return many_table(rows, _texts(batch), *settings, keys, names)


def _texts(batch: object) -> list[str]:
    """Return batches as a list of strings; a single string becomes a list of one.

    Raises:
        PinnError: If a batch is not a string.
    """
    listed = [batch] if isinstance(batch, str) else batch
    if not isinstance(listed, Sequence) or not all(isinstance(each, str) for each in listed):
        example = "such as '32 decode @ 700'"
        raise PinnError(f"batch must be a text or a list of texts, {example}, got {batch!r:.60}")
    return list(listed)


def configuration_rows(
    configurations: AnyConfigurations, spelled: dict[str, str] | None = None
) -> list[Values]:
    """Return a list of configurations from any form that :func:`predict_many` accepts.

    ``spelled`` receives the spelling of each key, and allows the user's own identifiers.
    """
    import pandas as pd

    if isinstance(configurations, str | Path):
        return typed_configurations(configurations, spelled)
    if isinstance(configurations, Mapping):
        return expand_grid(configurations, spelled=spelled)
    records: Any = configurations
    if isinstance(configurations, pd.DataFrame):
        if twice := [*configurations.columns[configurations.columns.duplicated()].unique()]:
            fault = f"the configurations have several columns {', '.join(map(repr, twice))}"
            raise PinnError(f"{fault}: drop or rename all but one of each name")
        canonical(dict.fromkeys(map(str, configurations)), spelled=spelled)  # also without rows
        blank = configurations.isna()
        records = configurations.astype(object).mask(blank, None).to_dict("records")
    listed = list(records) if isinstance(records, Iterable) else [records]
    bad = next((row for row in listed if not isinstance(row, Mapping)), None)
    if bad is not None:
        remedy = 'give {"gpu": ["H100", "H200"]}, or [{"gpu": "H100"}, {"gpu": "H200"}]'
        raise PinnError(
            "configurations must be a mapping of lists or a list of mappings, got "
            f"{bad!r:.60}: {remedy}"
        )
    names = _row_names(configurations, len(listed)) or []
    return [canonical(row, f"{name}: ", spelled) for name, row in zip(names, listed, strict=True)]


def _row_names(configurations: AnyConfigurations, count: int) -> list[str] | None:
    """Return the name of each row in error messages: its index label, or its place in a list.

    None is returned for grids and files.
    """
    import pandas as pd

    if isinstance(configurations, pd.DataFrame):
        return [f"row with index {label}" for label in configurations.index]
    if isinstance(configurations, str | Path | Mapping):
        return None
    return [f"configurations[{place}]" for place in range(count)]
