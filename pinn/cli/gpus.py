"""``pinn gpus``."""

from __future__ import annotations

from dataclasses import asdict

import typer

from pinn.cli.json_output import write_json
from pinn.cli.options import JsonPath
from pinn.specs.gpu import GpuSpec
from pinn.specs.gpu_catalog import list_gpus, load_gpu
from pinn.units import GIB, GIGA, TERA

app = typer.Typer()


@app.command()
def gpus(
    sources: bool = typer.Option(False, "--sources", help="Say where the figures come from."),
    json_path: JsonPath = None,
) -> None:
    """List the GPUs known by name with their datasheets; TFLOP/s are dense.

    A GPU of your own needs a JSON file like those in data/gpus and no code: --gpu my_gpu.json.
    """
    typer.echo(
        f"{'gpu':22}{'GiB':>6}{'TB/s':>7}{'bf16':>7}{'fp8':>7}{'fp4':>7}{'SMs':>5}"
        f"{'link GB/s':>11}{'PCIe GB/s':>11}"
    )
    known = [load_gpu(name) for name in list_gpus()]
    write_json([asdict(gpu) for gpu in known], json_path)
    for gpu in known:
        typer.echo(_line(gpu))
        if sources:
            typer.echo(f"  {gpu.source}")


def _line(gpu: GpuSpec) -> str:
    peaks = "".join(_tera(gpu.peak_flop_per_s.get(kind)) for kind in ("bf16", "fp8", "fp4"))
    return (
        f"{gpu.name:22}{gpu.memory_bytes / GIB:6.0f}"
        f"{gpu.memory_bandwidth_bytes_per_s / TERA:7.2f}{peaks}{gpu.sm_count:5}"
        f"{gpu.link_bandwidth_bytes_per_s / GIGA:11.0f}"
        f"{gpu.pcie_bandwidth_bytes_per_s / GIGA:11.0f}"
    )


def _tera(flop_per_s: float | None) -> str:
    return f"{flop_per_s / TERA:7.0f}" if flop_per_s else f"{'-':>7}"
