"""Small made-up runs with simulated metrics, and operators with prior betas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from simulator_helpers import DENSE, GPU, MIXTURE

from pinn.engines.deployment import Deployment
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.measurements.runs.measured_runs import FIGURES, MeasuredRun
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import WHOLE_RUN, figure_seconds
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.workload import PromptGroups, shared_prefix
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.training.teacher import EXPLAINED_BY

#: Names of the step features, in the order of beta.
_NAMES = list(STEP_FEATURES)


def operator_betas() -> np.ndarray:
    """Return each operator's betas: the priors of features that no earlier operator explains."""
    betas, taken = np.zeros((len(COMPOSED_PARTS), len(_NAMES))), {"layer", "request", "activations"}
    for row, operator in enumerate(COMPOSED_PARTS):
        for name in EXPLAINED_BY[operator]:
            if name not in taken:
                betas[row, _NAMES.index(name)] = STEP_FEATURES[name].prior
                taken.add(name)
    return betas


def wide(model, name):
    """Return a model of a size whose weights take milliseconds to read."""
    return replace(model, name=name, hidden_size=4096, vocab_size=32000)


def made_up_run(name: str, model, rate: float = 4.0) -> MeasuredRun:
    """Return a run without measurements."""
    serving = ServingSpec(max_num_batched_tokens=2048, max_num_seqs=32, max_model_len=4096)
    workload = shared_prefix(
        [Stage(rate, 30.0), Stage(2 * rate, 30.0)],
        PromptGroups(3, 3, 64, 200),
        40,
        stage_gap_s=1.0,
    )
    deployment = Deployment(model, GPU, serving)
    stages = dict.fromkeys(("0", "1", WHOLE_RUN), 0.0)
    return MeasuredRun(name, deployment, "made up", (rate, 2 * rate), workload, {}, stages)


def on_h100(name: str, model: str, **serving) -> MeasuredRun:
    """Return a run without measurements of a model of the catalog."""
    run = made_up_run(name, load_model(model))
    spec = replace(run.deployment.serving, **serving)
    return replace(run, deployment=Deployment(load_model(model), load_gpu("H100"), spec))


def measured(run: MeasuredRun, latency: LinearLatency) -> MeasuredRun:
    """Return the run with simulated metrics as its measurements."""
    simulated = simulate(run.deployment, run.workload, latency)
    figures = {
        stage: {figure: figure_seconds(simulated, stage, figure) for figure in FIGURES}
        for stage in run.failed_share
    }
    return replace(run, measured=figures)


def three_runs() -> list[MeasuredRun]:
    """Return runs of two dense models and of a mixture-of-experts model."""
    return [
        made_up_run("a", wide(DENSE, "dense-a")),
        made_up_run("b", replace(wide(DENSE, "dense-b"), hidden_size=2048)),
        made_up_run("c", wide(MIXTURE, "mixture-c")),
    ]
