"""Coefficient tables with one row per configuration, and their files."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from pinn.common import JsonObject, files, tables
from pinn.engines.configurations import Configuration
from pinn.engines.deployment import Deployment
from pinn.export.configured import Configured
from pinn.memory.kv_layout import gpu_cache_tokens, max_model_len
from pinn.physics.costs import COST_NAMES, model_costs
from pinn.specs import catalog, gpu, model_names
from pinn.specs.flags import FlagValue
from pinn.specs.model import Sampling
from pinn.specs.serving import ServingSpec
from pinn.surrogate import deployment_features as speculation
from pinn.surrogate import request_features as request
from pinn.surrogate import step_features as step
from pinn.surrogate.coefficients import Coefficients

# Coefficient tables: one row per configuration, with everything needed to compute its step times.

FORMAT = "pinn.coefficient_table"
#: Version of the table format, raised if older readers would misinterpret a file.
VERSION = 1

_SERVING = tuple(f.name for f in fields(ServingSpec))


def beta_columns() -> list[str]:
    """Return the column names of step coefficients (beta), in the order of ``STEP_FEATURES``."""
    return [f"beta.{f.name} [{f.unit}]" for f in step.STEP_FEATURES.values()]


def alpha_columns() -> list[str]:
    """Return column names of request coefficients (alpha), in the order of ``REQUEST_FEATURES``."""
    return [f"alpha.{f.name} [{f.unit}]" for f in request.REQUEST_FEATURES.values()]


def coefficient_columns(found: Coefficients) -> dict[str, Float[np.ndarray, " rows"]]:
    """Return the coefficients as contiguous columns, by name: step, then request coefficients."""
    names = (*beta_columns(), *alpha_columns())
    return dict(zip(names, np.ascontiguousarray(found.values.T), strict=True))


def configuration_columns(configured: Configured) -> dict[str, list[object]]:
    """Return the columns that describe configurations: model, GPU, precision and engine flags.

    ``max_model_len`` is always a number: the model's own maximum if the flag is not set.
    ``graph_sizes`` has the numbers of decodes for which CUDA graphs are captured, separated by
    commas, null without padding. ``window_tokens`` is the window of the layers with windowed
    attention, null if there are none. ``gpu_cache_tokens`` is the number of tokens whose keys and
    values (of one head) fit in the GPU's L2 cache. ``model_aliases`` and ``gpu_aliases`` are other
    names of model and GPU, separated by ``|``.
    """
    rows = list(zip(configured.configurations, configured.deployments, strict=True))
    found: dict[str, list[object]] = {
        "model": [d.model.name for d in configured.deployments],
        "gpu": [d.gpu.name for d in configured.deployments],
        "model_aliases": ["|".join(_model_aliases(c, d)) for c, d in rows],
        "gpu_aliases": ["|".join(gpu.gpu_aliases(d.gpu)) for d in configured.deployments],
        "precision": [c.get("precision") for c in configured.configurations],
    }
    flags = [serving_values(d) for d in configured.deployments]
    found |= {name: [row[name] for row in flags] for name in _SERVING}
    sizes = [d.recipe.graph_sizes for d in configured.deployments]
    found["graph_sizes"] = [",".join(map(str, each)) or None for each in sizes]
    found["window_tokens"] = [d.model.window_tokens for d in configured.deployments]
    found["gpu_cache_tokens"] = [gpu_cache_tokens(d) for d in configured.deployments]
    return found


def _model_aliases(configuration: Configuration, deployment: Deployment) -> list[str]:
    """Return the other names of a row's model: the user's name and aliases.

    Only aliases with the same default sampling settings are included.
    """
    model = deployment.model
    given = str(configuration.get("model", model.name))
    return [
        name
        for name in dict.fromkeys([given, *model_names.names_of(model.name)])
        if name != model.name and (name == given or _sampling(name) == model.sampling)
    ]


@cache
def _sampling(name: str) -> Sampling:
    return catalog.load_model(name).sampling


def serving_values(deployment: Deployment) -> dict[str, FlagValue]:
    """Return the flags of a deployment, with resolved limits of batch size and memory."""
    recipe, serving = deployment.recipe, deployment.serving
    return asdict(serving) | {
        "max_model_len": max_model_len(deployment),
        "max_num_batched_tokens": recipe.token_budget,
        "max_num_seqs": recipe.max_requests,
        "gpu_memory_utilization": recipe.memory_share,
        "enable_chunked_prefill": recipe.chunked_prefill,
        "block_size": recipe.block_tokens,
    }


def export_table(
    configured: Configured, intervals: Float[np.ndarray, "2 n coefficients"] | None = None
) -> pa.Table:
    """Return the coefficient table from which every file format is written.

    Columns, in this order:

    - ``format`` and ``version``, then the columns of the configuration;
    - ``beta.NAME [unit]`` and ``alpha.NAME [unit]`` in the order of ``STEP_FEATURES`` and
      ``REQUEST_FEATURES``, in seconds or as multipliers;
    - with intervals, ``beta_low.NAME [unit]``, ``beta_high``, ``alpha_low`` and ``alpha_high``,
      null if unknown;
    - ``cost.NAME``, the costs of a forward pass of the model (``StepCosts``), from which step
      features follow;
    - with speculative decoding, the columns for draft tokens (``_draft_columns``);
    - ``source`` of the coefficients, and the checkpoint's hash;
    - the nearest measured deployment and its distance in standard deviations, null without one.

    Args:
        configured: Configurations of the rows.
        intervals: Intervals as ``pinn.export.configured.find_intervals`` returns them.
    """
    n = len(configured)
    types = {"precision": pa.string(), "graph_sizes": pa.string(), "window_tokens": pa.int64()}
    columns: dict[str, object] = {"format": [FORMAT] * n, "version": [VERSION] * n}
    for name, values in configuration_columns(configured).items():
        columns[name] = pa.array(values, types.get(name))
    columns |= coefficient_columns(configured.coefficients)
    if intervals is not None:
        columns |= _interval_columns(intervals)
    costs = model_costs(configured.deployments)
    columns |= {f"cost.{name}": getattr(costs, name) for name in COST_NAMES}
    if any(d.recipe.speculation for d in configured.deployments):
        columns |= _draft_columns(configured.deployments)
    columns["source"] = configured.sources
    columns["checkpoint_sha256"] = [configured.provenance.get("checkpoint_sha256", "")] * n
    columns["nearest_measured"] = pa.array(configured.nearest, pa.string())
    away = configured.distances.distance
    columns["distance"] = pa.array(away, mask=np.isnan(away))
    return pa.table(columns)


def _draft_columns(deployments: Sequence[Deployment]) -> dict[str, pa.Array]:
    """Return the columns for speculative decoding, which are null in rows without it.

    ``draft_acceptance`` has, separated by commas, the acceptance probability of each draft token,
    given that all earlier ones are accepted. ``tokens_per_step`` is the mean number of tokens that
    a request gets per step. ``draft.tokens``, ``draft.passes`` and ``draft.branches`` are fields of
    ``Speculation``. ``draft_cost.NAME`` is a cost of one forward pass of the draft model, null if
    there is no draft model.
    """
    drafts = [d.recipe.speculation for d in deployments]
    found = {
        "draft_acceptance": pa.array(
            [",".join(map(repr, s.acceptance)) if s else None for s in drafts], pa.string()
        ),
        "tokens_per_step": pa.array([s.tokens_per_step if s else None for s in drafts]),
    }
    for name in ("tokens", "passes", "branches"):
        counts = [getattr(s, name) if s else None for s in drafts]
        found[f"draft.{name}"] = pa.array(counts, pa.int64())
    costs = [speculation.draft_pass_costs(d) if d.draft else None for d in deployments]
    for name in COST_NAMES:
        values = [float(getattr(c, name)[0]) if c else None for c in costs]
        found[f"draft_cost.{name}"] = pa.array(values, pa.float64())
    return found


def _interval_columns(intervals: Float[np.ndarray, "2 n coefficients"]) -> dict[str, pa.Array]:
    names = [name.partition(".") for name in (*beta_columns(), *alpha_columns())]
    return {
        f"{part}_{end}.{name}": pa.array(column, mask=np.isnan(column))
        for end, vectors in zip(("low", "high"), intervals, strict=True)
        for (part, _, name), column in zip(names, np.ascontiguousarray(vectors.T), strict=True)
    }


# Coefficient tables on disk. Floats are written with all digits. A Go package (``export/go``) reads
# the tables.

_PROVENANCE = b"pinn.provenance"


def write_table_file(table: pa.Table, provenance: JsonObject, path: Path) -> None:
    """Write a table of ``export_table`` in the format that the file's suffix names.

    JSON and Parquet files include the provenance; CSV files have only the table's columns.

    Raises:
        PinnError: If the format is unknown.
    """
    known = table.replace_schema_metadata({_PROVENANCE: files.json_text(provenance).encode()})
    tables.write_arrow(known, path, lambda found: table_json(found, provenance).encode())


def table_json(table: pa.Table, provenance: JsonObject) -> str:
    """Return a table as a JSON document: format, version, provenance and one row per line."""
    head = {"format": FORMAT, "version": VERSION, "provenance": provenance}
    rows = table.drop_columns(["format", "version"]).to_pylist()
    lines = ",\n".join(files.json_text(row) for row in rows)
    return files.json_text(head)[:-1] + f', "rows": [\n{lines}\n]}}\n'
