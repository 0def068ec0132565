"""Coefficient tables of many configurations, and their files."""

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

# Flat coefficient tables: one row per configuration, with all inputs of a step time.

FORMAT = "pinn.coefficient_table"
#: Version of the format, raised if earlier readers would misinterpret a file.
VERSION = 1

_SERVING = tuple(f.name for f in fields(ServingSpec))


def beta_columns() -> list[str]:
    """Return the names of the beta columns, in the order of ``STEP_FEATURES``."""
    return [f"beta.{f.name} [{f.unit}]" for f in step.STEP_FEATURES.values()]


def alpha_columns() -> list[str]:
    """Return the names of the alpha columns, in the order of ``REQUEST_FEATURES``."""
    return [f"alpha.{f.name} [{f.unit}]" for f in request.REQUEST_FEATURES.values()]


def coefficient_columns(found: Coefficients) -> dict[str, Float[np.ndarray, " rows"]]:
    """Return name -> column of each coefficient, betas first, each contiguous in memory."""
    names = (*beta_columns(), *alpha_columns())
    return dict(zip(names, np.ascontiguousarray(found.values.T), strict=True))


def configuration_columns(configured: Configured) -> dict[str, list[object]]:
    """Return name -> column of configurations: model, GPU, given precision and all engine flags.

    ``max_model_len`` is always a number: the model's own if the flag is not set. ``window_tokens``
    is the attention window of the windowed layers, null without one. ``gpu_cache_tokens`` is the
    number of tokens whose keys and values of one head fit in the GPU's cache. ``model_aliases`` and
    ``gpu_aliases`` are other names, separated by ``|``.
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
    found["window_tokens"] = [d.model.window_tokens for d in configured.deployments]
    found["gpu_cache_tokens"] = [gpu_cache_tokens(d) for d in configured.deployments]
    return found


def _model_aliases(configuration: Configuration, deployment: Deployment) -> list[str]:
    """Return other names of a row's model: the user's, and names with equal sampling settings."""
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
    """Return flag -> value of a deployment, with resolved limits of batch size and memory."""
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

    - ``format`` and ``version``, then the configuration;
    - ``beta.NAME [unit]`` and ``alpha.NAME [unit]`` in the order of ``STEP_FEATURES`` and
      ``REQUEST_FEATURES``, in seconds or as multipliers;
    - with intervals, ``beta_low.NAME [unit]``, ``beta_high``, ``alpha_low`` and ``alpha_high``,
      null if unknown;
    - ``cost.NAME``, the costs of the model's pass (``StepCosts``), from which step features follow;
    - with speculative decoding, the draft (``_draft_columns``);
    - ``source`` of the coefficients, and the checkpoint's hash;
    - the nearest measured deployment and its distance in standard deviations, null without one.

    Args:
        configured: Configurations of the rows.
        intervals: Intervals as ``pinn.export.configured.find_intervals`` returns them.
    """
    n = len(configured)
    types = {"precision": pa.string(), "window_tokens": pa.int64()}
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
    """Return name -> column of speculative decoding, null in rows without it.

    ``draft_acceptance`` lists the acceptance probability of each drafted token, given that all
    earlier ones are accepted, separated by commas. ``tokens_per_step`` is a request's mean number
    of tokens per step. ``draft.tokens``, ``draft.passes`` and ``draft.branches`` are fields of
    ``Speculation``. ``draft_cost.NAME`` is a cost of a pass of the draft model, null without one.
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


# Coefficient tables on disk. Floats survive exactly. Go reads the tables (``export/go``).

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
