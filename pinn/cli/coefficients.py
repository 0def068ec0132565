"""Command ``pinn coefficients``: step times, coefficients and memory of deployments."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from pinn.api.requests import PredictionRequest, named
from pinn.cli.options import JsonPath, engine_flags, output
from pinn.cli.outputs import TABLES, write_json
from pinn.common.screen import skipped_lines
from pinn.errors import PinnError
from pinn.specs.flags import FlagValue
from pinn.specs.request_media import OPTIONS, asked_kind
from pinn.specs.serving import ServingSpec


@dataclass(frozen=True, kw_only=True)
class ManyOptions:
    """Options for many configurations instead of one.

    Attributes:
        configs: File of configurations: a CSV, YAML or JSON list, or a YAML or JSON grid (lists per
            key). Keys are names of options, such as tensor_parallel_size. Other options
            apply to rows that do not set them.
        grid: Grid instead of a file, such as 'gpu=H100,A100 tensor_parallel_size=1,2'.
        out: Table to write, with a row for each configuration: .csv, .json or .parquet.
        skip_invalid: Do not stop at configurations that the engine refuses or that are invalid;
            their rows have a reason instead of predictions, and they are counted.
    """

    PANEL: ClassVar[str] = "Many configurations"

    configs: Path | None = None
    grid: str | None = None
    out: Annotated[Path | None, output(*TABLES)] = None
    skip_invalid: bool = False


@engine_flags(ServingSpec, deploys=True)
def coefficients(
    asked: PredictionRequest,
    recipe: bool = False,
    betas: bool = False,
    memory: bool = False,
    *,
    many: ManyOptions,
    json_path: JsonPath = None,
    flags: dict[str, FlagValue],
) -> None:
    """Predict step times of an engine on a model and GPU, and their coefficients.

    Prints whether the engine starts, the step times of example batches with their 90 % intervals,
    and how close the configuration is to measured ones. --betas prints the coefficients: the time
    of a step is the sum of beta x feature, and alpha gives the times of a request outside the
    steps.
    --json also has the roofline lower bound of each batch.

    Examples:
      pinn coefficients --model Qwen/Qwen3-30B-A3B --gpu H200 -tp 2 -ep
        --batch '64 decode @ 1500' --json qwen.json

      pinn coefficients --model ./config.json --gpu my_gpu.json --quantization fp8

      pinn coefficients --configs candidates.csv --gpu H100 --out table.parquet

      pinn coefficients --model meta-llama/Llama-3.1-70B --out grid.csv
        --grid 'gpu=H100,B200 tensor_parallel_size=2,4,8 precision=bf16,fp8'

    Options:
        recipe: Print only the resolved engine configuration and the origin of each setting.
        betas: Print only the coefficients with their units.
        memory: Print only the memory of one GPU by part, and the lines that the engine would log
            about memory.
    """
    if many.configs is None and many.grid is None:
        from pinn.api.prediction import predict

        if many.out is not None or many.skip_invalid:
            raise PinnError(
                "--out and --skip-invalid apply to several configurations: give --configs or "
                "--grid, or use --json"
            )
        found = predict(**(vars(asked) | flags))
        if json_path is not None:  # slow, so computed only for JSON output
            write_json(found.to_json(), json_path)
        found.show(recipe=recipe, betas=betas, memory=memory)
    elif asked.coefficients is not None:
        raise PinnError("--coefficients applies to one configuration: omit --configs and --grid")
    elif kind := asked_kind(asked):
        option = OPTIONS[kind][0]
        fault = f"{option} applies to one configuration"
        raise PinnError(f"{fault}: omit {option}, or --configs and --grid")
    elif many.out is None:
        raise PinnError(
            "--configs or --grid is given without --out: give --out with a name that ends in .csv, "
            ".json or .parquet"
        )
    elif json_path is not None:
        raise PinnError(
            "--json applies to one configuration: use --out with a name ending in .json"
        )
    else:
        from pinn.export.coefficient_table import crossed, many_table, write_table

        spelled: dict[str, str] = {}
        rows = crossed(many.configs, many.grid, named(asked.model, asked.gpu) | flags, spelled)
        batches = asked.batch or []
        table, reasons = many_table(rows, batches, asked.checkpoint, many.skip_invalid, spelled)
        write_table(table, many.out)
        for line in skipped_lines(Counter(sorted(reasons)), "refused"):
            typer.echo(line)
        typer.echo(f"{len(table):8} configurations written to {many.out}")
