"""Methods of the evaluation suite."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from omegaconf import DictConfig

from pinn.coefficients.surrogate import Surrogate
from pinn.common.files import file_sha256, find_checkpoint
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.interface.exports.blis_features import BlisSums, blis_features
from pinn.interface.exports.blis_model import blis_model
from pinn.laboratory.aiconfigurator import released_predictions
from pinn.laboratory.crossvalidation import kept_cell
from pinn.laboratory.formulas import (
    Bases,
    formula_per_deployment,
    linear_formula,
    phase_floors,
    published_formula,
    row_bases,
    token_counts,
)
from pinn.laboratory.methods import Method, peer, roofline
from pinn.laboratory.regressions import (
    everything,
    linear_settings,
    mlp_settings,
    on_bases,
    regression,
    tree_settings,
)
from pinn.laboratory.step_baselines import (
    LEARNERS,
    baselines,
    donor_coefficients,
    hierarchical_basis,
)
from pinn.physics.batch_sums import BatchSums
from pinn.server.calibration.calibrate import TEST, Intervals, candidates, read_intervals
from pinn.server.calibration.prior import Prior, checkpoint_prior
from pinn.server.traces.ingestion import ingest_steps
from pinn.server.traces.trace_run import Target
from pinn.specs.serving import ServingSpec
from pinn.training.data.silicon import read_silicon
from pinn.units import MICROSECOND

# The methods of the evaluation suite: everything that is compared on the same rows.

#: Global coefficients that come with BLIS (its ``defaults.yaml``, ``trained_physics_coefficients``,
#: August 2026): alpha us before the queue, us at completion, us per output token; beta.
BLIS_ALPHA = (15563.2, 777.3, 45.9)
BLIS_BETA = (0.152, 0.0, 1.363, 0.752, 32.1, 4.42, 126.0, 482.0, 0.0, 1.947, 0.752)

#: Methods that saw what they predict, or kernels of the very models: no choice for an unseen pair.
NOT_FOR_UNSEEN = ("blackbox, per configuration", "aiconfigurator")

#: Columns of a load.
LOAD = ["concurrency", "prompt_tokens", "output_tokens"]


def published_methods(observations: pd.DataFrame) -> list[Method]:
    """Methods that fit nothing."""
    peers = peer("aiconfigurator", released_predictions())
    return [roofline(), published_blis(observations), peers]


def formulas(observations: pd.DataFrame) -> list[Method]:
    """Formulas whose few coefficients are fitted."""
    counts = row_bases(observations, token_counts)
    return [
        linear_formula("roofline, constant efficiencies", row_bases(observations, phase_floors)),
        linear_formula("blackbox", counts),
        formula_per_deployment("blackbox, per configuration", counts),
    ]


def regressions(observations: pd.DataFrame, seed: int) -> list[Method]:
    """Ridge and lasso on the hierarchical decomposition; trees and an MLP on everything."""
    decomposed = partial(on_bases, hierarchical_bases(observations))
    inputs = partial(everything, observations.set_index("row_id")[LOAD])
    return [
        regression("HFD-TL, ridge", "ridge", decomposed, linear_settings(), seed),
        regression("HFD-TL, lasso", "lasso", decomposed, linear_settings(), seed),
        regression("gradient-boosted trees", "trees", inputs, tree_settings(), seed),
        regression("plain MLP", "mlp", inputs, mlp_settings(), seed),
    ]


def published_blis(observations: pd.DataFrame) -> Method:
    """BLIS's trained-physics formula with the coefficients that come with it."""
    before, _, per_token = (us * MICROSECOND for us in BLIS_ALPHA)
    bases = row_bases(observations, blis_basis)
    return published_formula("BLIS, published", bases, np.array(BLIS_BETA), before, per_token)


def blis_basis(
    deployment: Deployment, sums: BatchSums, prompt_tokens: float
) -> Float[np.ndarray, "batches basis"]:
    """BLIS's basis functions of closed-loop batches, seconds.

    Its prefill attention needs sum t (S + t / 2) over chunks of t tokens of prompts of S. The
    second part is taken from the pairs that chunks attend to, which count cached tokens too; whole
    prompts have none.
    """
    blis = BlisSums(
        sums.prefill_tokens,
        sums.decode_requests,
        sums.decode_context - sums.decode_requests,
        sums.requests,
        sums.prefill_tokens * prompt_tokens + sums.prefill_pairs,
    )
    return blis_features(blis_model(deployment), blis) * MICROSECOND


def hierarchical_bases(observations: pd.DataFrame) -> Bases:
    """F_base and F_config of the hierarchical decomposition.

    An unseen pair has no observations to fit its residual to: what transfers is this part.
    """
    return row_bases(observations, hierarchical_basis)


# Earlier steps teach, later ones test: one traced run, split by time.

SPLIT = "temporal"


def step_cell(config: DictConfig, fingerprint: str, skipped: dict[str, str]) -> pd.DataFrame | None:
    """Predictions of the last 20 % of a traced run's time by what the first 60 % taught.

    Windows of several steps and single steps are told apart as held-out parts. Every 50 test rows
    that follow each other are a group.

    Args:
        config: Of the suite; ``steps`` names folder, model, GPU and flags of the run.
        fingerprint: Of what is learned.
        skipped: Gets the reason where nothing is made.
    """
    folder = config.steps.path
    found = sorted(Path(folder).glob(config.steps.pattern)) if folder else []
    if not found:
        skipped[SPLIT] = "no step summaries: set steps.path or PINN_STEPS_DIR to their folder"
        return None
    checkpoint = find_checkpoint(config.steps.checkpoint)

    def make(_: Path) -> pd.DataFrame:
        serving = ServingSpec(**config.steps.serving)
        target = Target(config.steps.model, config.steps.gpu, serving)
        traces = ingest_steps(found[0], Path(config.output_dir) / "observations" / "steps", target)
        deployment = traces.deployment()
        intervals = read_intervals(traces, deployment)
        coefficients = Surrogate.load(checkpoint).coefficients([deployment])
        prior = checkpoint_prior(checkpoint, deployment, coefficients)[0]
        return step_predictions(intervals, deployment, prior)

    key = [fingerprint, file_sha256(found[0]), file_sha256(checkpoint)]
    return kept_cell(config, "steps", key, make, partial(skipped.__setitem__, SPLIT))


def step_predictions(intervals: Intervals, deployment: Deployment, prior: Prior) -> pd.DataFrame:
    """Every baseline of a calibration on the last part of the run's time."""
    last = intervals.of_part(TEST)
    methods = baselines(deployment, prior, donor_coefficients(read_silicon()[0]))
    if not set(LEARNERS) <= methods.keys():
        raise PinnError("the suite's regressions need it: run 'pip install scikit-learn'")
    tables = []
    for kind, mask in (("windows", last.is_window), ("singles", last.is_single)):
        test, train = last.take(mask), candidates(intervals, kind)
        names = [f"{kind} {row}" for row in test.row]
        groups = [f"{kind} {i // 50}" for i in range(len(test))]
        for name, fit_predict in methods.items():
            times = {"step_s": fit_predict(train, test), "step_measured_s": test.seconds}
            about = {"split": SPLIT, "held_out": kind, "row_id": names, "group": groups}
            tables.append(pd.DataFrame(about | {"method": _NAMES.get(name, name)} | times))
    return pd.concat(tables, ignore_index=True)


#: Names under which the same methods stand in the other splits.
_NAMES = {
    "coefficients, before": "network",
    "coefficients, calibrated": "network, calibrated",
    "roofline, tuned efficiencies": "roofline, constant efficiencies",
}
