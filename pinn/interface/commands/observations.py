"""``pinn observations``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.common.files import find_kernels
from pinn.errors import PinnError
from pinn.interface.commands.options import output
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu

if TYPE_CHECKING:
    from pinn.engines.deployment import Deployment
    from pinn.kernels.exclusion import Exclusion
    from pinn.kernels.surrogates import KernelSurrogates
    from pinn.specs.gpu import GpuSpec
    from pinn.specs.model import ModelSpec


# ``pinn observations``: from foreign files to tables to train on.

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Write measurements as tables to train on."
)

Out = Annotated[Path, output("--out", "Parquet file; its manifest goes beside it.", ".parquet")]


@app.callback()
def _root() -> None:
    """One subcommand per source."""


@app.command()
def silicon(
    out: Out,
    source: Annotated[
        Path | None,
        typer.Option("--source", help="silicon_sample.csv; the installed package's by default."),
    ] = None,
) -> None:
    """Measured vLLM deployments of the package aiconfigurator-core.

    Prints what was read, refused with its reason, and accepted; the counts add up.

    Example: pinn observations silicon --out observations/silicon.parquet
    """
    from pinn.training.data.engine_deployments import import_silicon

    report = import_silicon(out, source)
    typer.echo(report.table())
    typer.echo(f"wrote {out}")


# ``pinn observations kernels``: steps composed of measured kernels, for any deployments.

_GRID = "Grid: every combination that fits"
_DRAWN = "Drawn at random"


def _axis(text: str, *flags: str) -> typer.models.OptionInfo:
    return typer.Option(*flags, help=f"{text} Repeatable.", rich_help_panel=_GRID)


@app.command()
def kernels(
    out: Annotated[Path, typer.Option("--out", help="Folder of the Parquet files and manifest.")],
    model: Annotated[list[str] | None, _axis("Name or path of a config.json.", "--model")] = None,
    gpu: Annotated[
        list[str] | None,
        _axis("Name or datasheet; without it, every GPU with measured kernels.", "--gpu"),
    ] = None,
    tensor_parallel_size: Annotated[
        list[int] | None, _axis("GPUs that share each layer.", "--tensor-parallel-size")
    ] = None,
    data_parallel_size: Annotated[
        list[int] | None, _axis("Replicas of the attention.", "--data-parallel-size")
    ] = None,
    expert_parallel: Annotated[
        list[bool] | None,
        typer.Option(
            "--enable-expert-parallel/--no-enable-expert-parallel",
            help="Whole experts on each GPU; give both for both.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    precision: Annotated[
        list[str] | None, _axis("As in pinn coefficients.", "--quantization", "--precision")
    ] = None,
    kv_cache_dtype: Annotated[
        list[str] | None, _axis("Format of the cache.", "--kv-cache-dtype")
    ] = None,
    synthetic: Annotated[
        int,
        typer.Option("--synthetic", help="Deployments of made-up models.", rich_help_panel=_DRAWN),
    ] = 0,
    catalog: Annotated[
        int,
        typer.Option(
            "--catalog",
            help="Draws of known models; those that do not fit are left out.",
            rich_help_panel=_DRAWN,
        ),
    ] = 0,
    exclude_model: Annotated[
        list[str] | None,
        typer.Option("--exclude-model", help="Neither it nor a near copy, nor their kernels."),
    ] = None,
    exclude_gpu: Annotated[
        list[str] | None, typer.Option("--exclude-gpu", help="Neither it nor its kernels.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of draws and batches.")] = 0,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--kernels",
            help="Folder of fitted surrogates; without it, those in checkpoints/kernels, else "
            "fitted now and kept in cache.",
        ),
    ] = None,
) -> None:
    """Steps composed of measured kernels: 96 batches for each of many deployments.

    Writes deployments.parquet, steps-*.parquet (the batches, and the seconds of each part of the
    step) and manifest.json. Run it again to go on after an interruption; the same options give
    the same bytes, others take the place of what the folder held.

    Examples:
      pinn observations kernels --synthetic 18000 --catalog 6000 --out kernels

      pinn observations kernels --model Llama-3.1-70B --model gpt-oss-120b
        --gpu H100 --gpu B200 --tensor-parallel-size 2 --out two-models
    """
    import torch

    from pinn.common.screen import doing
    from pinn.training.composed import write_kernel_observations

    torch.set_num_threads(1)
    axes: dict[str, list[Any] | None] = {
        "model": model, "gpu": gpu, "tensor_parallel_size": tensor_parallel_size,
        "data_parallel_size": data_parallel_size, "enable_expert_parallel": expert_parallel,
        "precision": precision, "kv_cache_dtype": kv_cache_dtype,
    }  # fmt: skip
    given = {name: list(values) for name, values in axes.items() if values}
    if not model and set(given) - {"gpu"}:
        raise PinnError(f"no --model given for the grid of {', '.join(set(given) - {'gpu'})}")
    exclude = _exclusion(exclude_model or [], exclude_gpu or [])
    surrogates = _surrogates(folder, exclude)
    given.setdefault("gpu", _measured_gpus(surrogates))
    chips = [load_gpu(name) for name in given["gpu"]]
    deployments, left_out = _grid(given, exclude) if model else ([], {})
    deployments += _drawn(synthetic, catalog, chips, seed, exclude)
    about = {
        "selection": {**given, "synthetic": synthetic, "catalog": catalog},
        "excluded": exclude.describe(),
        "left_out": left_out,
    }
    steps = write_kernel_observations(
        surrogates,
        deployments,
        out,
        seed=seed,
        workers=workers,
        about=about,
        progress=lambda done, total: doing(f"composing steps, shard {done} of {total}"),
    )
    for reason, count in left_out.items():
        typer.echo(f"{count:8} left out: {reason}")
    typer.echo(f"{len(deployments):8} deployments, {steps.parts.shape[1]} steps each, in {out}")


def _exclusion(models: list[str], gpus: list[str]) -> Exclusion:
    from pinn.kernels.exclusion import Exclusion

    return Exclusion(
        tuple(load_model(name) for name in models), tuple(load_gpu(name).name for name in gpus)
    )


def _surrogates(folder: Path | None, exclude: Exclusion) -> KernelSurrogates:
    """Surrogates of the folder; else released, cached or newly fitted ones."""
    from pinn.kernels.surrogates import KernelSurrogates
    from pinn.training.kernel_learner import KernelSettings, fitted_surrogates

    found = find_kernels(folder)
    if folder is None or found is None:
        released = None if found is None else str(found.parent)
        return fitted_surrogates(KernelSettings(released, cache="cache", gpus=()), exclude)
    surrogates = KernelSurrogates.load(found)
    without = surrogates.metadata.get("excluded")
    if without != exclude.describe():
        raise PinnError(
            f"{folder} holds surrogates fitted without {without}, wanted without "
            f"{exclude.describe()}: name another folder, or none to have them fitted"
        )
    return surrogates


def _measured_gpus(surrogates: KernelSurrogates) -> list[str]:
    return sorted({gpu for gpu, _ in surrogates.measured["gemm"].tables})


def _grid(
    axes: dict[str, list[Any]], exclude: Exclusion
) -> tuple[list[Deployment], dict[str, int]]:
    """What fits together and in memory, and how many do not, by reason."""
    from pinn.coefficients.configurations import expand_grid, make_deployments
    from pinn.training.composed import fits_in_memory

    _, found, reasons = make_deployments(expand_grid(axes), skip_invalid=True)
    kept = []
    for deployment in found:
        if not _allowed(deployment.model, exclude) or deployment.gpu.name in exclude.gpus:
            reasons.append("near copy of an excluded model, or an excluded GPU")
        elif deployment.recipe.expert_parallel_size > 1 and deployment.model.moe is None:
            reasons.append("expert parallelism without experts")
        elif not fits_in_memory(deployment):
            reasons.append("weights leave too little GPU memory")
        else:
            kept.append(deployment)
    return kept, {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}


def _drawn(
    synthetic: int, catalog: int, gpus: list[GpuSpec], seed: int, exclude: Exclusion
) -> list[Deployment]:
    from pinn.training.synthetic import catalog_deployments, synthetic_deployments

    gpus = [gpu for gpu in gpus if gpu.name not in exclude.gpus]
    allowed = partial(_allowed, exclude=exclude)
    made_up = synthetic_deployments(synthetic, gpus, seed + 1, allowed) if synthetic else []
    known = catalog_deployments(catalog, gpus, seed + 2, allowed) if catalog else []
    return made_up + known


def _allowed(model: ModelSpec, exclude: Exclusion) -> bool:
    from pinn.kernels.exclusion import is_near_copy

    return not any(is_near_copy(model, held_out) for held_out in exclude.models)
