"""A workload served in simulated time."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.api import simulation_report
from pinn.api.arguments import read_request, with_arguments
from pinn.api.requests import SimulationRequest
from pinn.common.files import json_text
from pinn.common.screen import printed
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.run import Run, plot_timeline, request_table
from pinn.simulator.workloads.load import LoadFlags, asked_load
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Simulation:
    """What a workload's clients see.

    Attributes:
        deployment: What served it.
        run: Records of every request and step.
        intervals: Ends of the mean figures, and what they rest on; None where nothing tells.
        sensitivity: How far each coefficient moves a figure; None where none was asked for.
    """

    deployment: Deployment
    run: Run
    intervals: dict[str, object] | None
    sensitivity: dict[str, object] | None

    @cached_property
    def figures(self) -> dict[str, object]:
        """What ``pinn simulate --json`` writes: ``e2e_mean_ms``, ``ttft_p99_ms``, ``stages``."""
        return simulation_report.simulation_figures((self.run, self.intervals, self.sensitivity))

    def requests(self) -> pd.DataFrame:
        """A row per request: status, tokens, every moment of its life in seconds."""
        found: pd.DataFrame = request_table(self.run).to_pandas()
        return found

    def timeline(self, path: str | Path) -> None:
        """Draw the run over time as a PNG."""
        plot_timeline(self.run, Path(path))

    def __str__(self) -> str:
        """What ``pinn simulate`` prints."""
        served = self.run, self.intervals, self.sensitivity
        return printed(simulation_report.print_simulation, self.deployment, served)


_SPECIFICATIONS = (ServingSpec, EngineSpec, LoadFlags)


@with_arguments(*_SPECIFICATIONS, request=SimulationRequest, deploys=True)
def simulate(
    workload: str | Path | Mapping[str, object] | pd.DataFrame | None = None,
    model: str | Path | None = None,
    gpu: str | Path | None = None,
    **given: object,
) -> Simulation:
    """Serve a workload on a simulated engine, as ``pinn simulate`` does.

    >>> load = {"prompt_tokens": 512, "output_tokens": 64, "concurrency": 8, "requests": 40}
    >>> found = simulate(load, "meta-llama/Llama-3.1-8B", "H100", max_num_seqs=4)
    >>> found.figures["completed_requests"], found.figures["running_max"]
    (40, 4)
    >>> alike = simulate(model="meta-llama/Llama-3.1-8B", gpu="H100", input_len=512, output_len=64,
    ...                  concurrency=8, num_prompts=40, max_num_seqs=4)
    >>> alike.figures["e2e_mean_ms"] == found.figures["e2e_mean_ms"]
    True
    >>> bool(found.requests()["ttft_s"].max() < found.requests()["e2e_s"].max())
    True

    Args:
        workload: File, as of ``pinn simulate --workload``; or the content of a plain one as a
            mapping; or a DataFrame with ``arrival_s``, ``prompt_tokens`` and ``output_tokens``.
            None where flags say it, such as ``input_len=1024, output_len=256, concurrency=64``.
        model: Name, or path of a config.json or its folder.
        gpu: Name, or path of a datasheet's JSON file.
        **given: All else, the engine's and the load's flags too.

    Raises:
        PinnError: If something is unknown, does not fit together, or cannot be served.
    """
    with workload_file(workload) as path:
        own = {"workload": path, "model": model, "gpu": gpu}
        asked, flags = read_request(SimulationRequest, given, *_SPECIFICATIONS, **own)
        load, flags = asked_load(asked.workload, flags, asked.seed)
        job = simulation_report.simulation_job(asked, load, flags)
    return Simulation(job.deployment, *simulation_report.serve(job, asked))


@contextlib.contextmanager
def workload_file(
    workload: str | Path | Mapping[str, object] | pd.DataFrame | None,
) -> Iterator[Path | None]:
    """The file of a workload; written for the time being where it is none."""
    if workload is None or isinstance(workload, str | Path):
        yield None if workload is None else Path(workload)
        return
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(workload, Mapping):
            path = Path(folder, "workload.yaml")
            path.write_text(json_text(workload))
        else:
            path = Path(folder, "workload.csv")
            workload.to_csv(path, index=False)
        try:
            yield path
        except PinnError as error:
            # Nobody wrote that file.
            said = str(error).replace(str(path), "workload").replace(folder, "workload")
            raise type(error)(said) from None
