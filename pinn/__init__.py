"""Physics-informed surrogate for the latency of LLM serving engines.

Data flows one way through the sub-packages, and imports follow it:

    common <- specs <- engines <- physics <- memory <- kernels <- surrogate <- simulator
          <- measurements <- training <- calibration <- planning <- export <- evaluation
          <- api <- cli

The functions of the commands are available in Python under these names, imported on first use:

>>> import pinn
>>> p = pinn.predict(model="Qwen/Qwen3-30B-A3B", gpu="H100", tensor_parallel_size=2)
>>> 0.001 < p.step_time("32 decode @ 700") < 0.1  # seconds
True
"""

from typing import TYPE_CHECKING

from pinn.errors import PinnError

if TYPE_CHECKING:
    from pinn.api.breakdown import breakdown
    from pinn.api.calibration import CalibratedServer, calibrate
    from pinn.api.evaluating import (
        Evaluation,
        evaluate,
        evaluate_coefficients,
        evaluate_decisions,
        evaluate_engines,
        evaluate_panel,
        evaluate_serving_runs,
        evaluate_speculation,
    )
    from pinn.api.exports import Written, export_blis, export_llm_d, export_onnx, export_table
    from pinn.api.ingestion import Ingested, ingest_benchmarks, ingest_steps, ingest_vllm
    from pinn.api.many_simulations import simulate_many
    from pinn.api.measuring import Measured, measure
    from pinn.api.names import KnownGpus, KnownModels, gpus, models
    from pinn.api.plans import NoPlanError, PlannedFleet, explore, plan
    from pinn.api.prediction import Prediction, predict, predict_many
    from pinn.api.scores import (
        Results,
        ScoreTable,
        compare,
        kernels_errors,
        kernels_mixers,
        kernels_score,
        results,
    )
    from pinn.api.serving import serve
    from pinn.api.simulation import (
        RateSweep,
        Simulation,
        simulate,
        simulate_fleet,
        simulate_pools,
        sweep,
    )

__version__ = "0.2.0"

__all__ = [
    "CalibratedServer",
    "Evaluation",
    "Ingested",
    "KnownGpus",
    "KnownModels",
    "Measured",
    "NoPlanError",
    "PinnError",
    "PlannedFleet",
    "Prediction",
    "RateSweep",
    "Results",
    "ScoreTable",
    "Simulation",
    "Written",
    "breakdown",
    "calibrate",
    "compare",
    "evaluate",
    "evaluate_coefficients",
    "evaluate_decisions",
    "evaluate_engines",
    "evaluate_panel",
    "evaluate_serving_runs",
    "evaluate_speculation",
    "explore",
    "export_blis",
    "export_llm_d",
    "export_onnx",
    "export_table",
    "gpus",
    "ingest_benchmarks",
    "ingest_steps",
    "ingest_vllm",
    "kernels_errors",
    "kernels_mixers",
    "kernels_score",
    "measure",
    "models",
    "plan",
    "predict",
    "predict_many",
    "results",
    "serve",
    "simulate",
    "simulate_fleet",
    "simulate_many",
    "simulate_pools",
    "sweep",
]

#: Functions and classes that ``pinn`` re-exports, by module of :mod:`pinn.api`.
_MODULES = {
    "breakdown": "breakdown",
    "calibration": "CalibratedServer calibrate",
    "evaluating": "Evaluation evaluate evaluate_coefficients evaluate_decisions evaluate_engines "
    "evaluate_panel evaluate_serving_runs evaluate_speculation",
    "exports": "Written export_blis export_llm_d export_onnx export_table",
    "ingestion": "Ingested ingest_benchmarks ingest_steps ingest_vllm",
    "many_simulations": "simulate_many",
    "measuring": "Measured measure",
    "names": "KnownGpus KnownModels gpus models",
    "plans": "NoPlanError PlannedFleet explore plan",
    "prediction": "Prediction predict predict_many",
    "scores": "Results ScoreTable compare kernels_errors kernels_mixers kernels_score results",
    "serving": "serve",
    "simulation": "RateSweep Simulation simulate simulate_fleet simulate_pools sweep",
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'pinn' has no attribute {name!r}")
    from importlib import import_module
    from inspect import isfunction

    from pinn.api.arguments import raising_in_python

    found: object = getattr(import_module(f"pinn.api.{_PLACES[name]}"), name)
    if isfunction(found):
        found = raising_in_python(found)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
