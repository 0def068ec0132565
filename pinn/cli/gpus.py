"""``pinn gpus``."""

from dataclasses import asdict
from typing import Annotated

import typer

from pinn.cli import options, outputs
from pinn.common import files, screen
from pinn.errors import PinnError
from pinn.specs.gpu import GpuSpec, list_gpus, load_gpu
from pinn.units import GIB, GIGA, TERA


@options.asked
def gpus(
    contains: Annotated[str, typer.Argument()] = "",
    sources: bool = False,
    json_path: options.JsonPath = None,
) -> None:
    """List the GPUs known by name with their datasheets; TFLOP/s are dense.

    Measured says what predictions for a GPU rest on: serving runs on it that the checkpoint
    learned from, kernels timed on it, or neither (-): then they are extrapolated from other GPUs.

    A GPU of your own needs a JSON file like those in data/gpus and no code: --gpu my_gpu.json.

    Example: pinn gpus h100

    Options:
        contains: Show only names with this text, in any case.
        sources: Say where the figures come from.
    """
    from pinn.surrogate.uncertainty.distance import measured_gpus

    known = [load_gpu(name) for name in list_gpus() if contains.lower() in name.lower()]
    if not known:
        raise PinnError(f"no known name has {contains!r:.80} in it: 'pinn gpus' lists all")
    typer.echo(
        f"{'gpu':25}{'GiB':>5}{'TB/s':>6}{'bf16':>6}{'fp8':>6}{'fp4':>6}{'SMs':>5}"
        f"{'link GB/s':>11}{'PCIe GB/s':>11}  measured"
    )
    measured = measured_gpus(files.find_checkpoint(None))
    rows = [asdict(gpu) | {"measured": measured.get(gpu.name, "-")} for gpu in known]
    outputs.write_json(rows, json_path)
    for gpu in known:
        typer.echo(f"{_line(gpu)}  {measured.get(gpu.name, '-')}")
        if sources:
            screen.say(f"  {gpu.source}")


def _line(gpu: GpuSpec) -> str:
    flop_per_s = (gpu.peak_flop_per_s.get(kind) for kind in ("bf16", "fp8", "fp4"))
    peaks = "".join(f"{peak / TERA:6.0f}" if peak else f"{'-':>6}" for peak in flop_per_s)
    return (
        f"{gpu.name:25}{gpu.memory_bytes / GIB:5.0f}"
        f"{gpu.memory_bandwidth_bytes_per_s / TERA:6.2f}{peaks}{gpu.sm_count:5}"
        f"{gpu.link_bandwidth_bytes_per_s / GIGA:11.0f}"
        f"{gpu.pcie_bandwidth_bytes_per_s / GIGA:11.0f}"
    )
