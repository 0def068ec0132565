"""``pinn compare``."""

from pinn.api.score_requests import CompareRequest
from pinn.cli.options import Details, JsonPath, asked
from pinn.cli.outputs import write_json


@asked
def compare(sides: CompareRequest, details: Details = False, json_path: JsonPath = None) -> None:
    """Two checkpoints, coefficient files or evaluations, metric by metric.

    A checkpoint (.safetensors) is compared by the held-out errors that it carries and by its step
    times of well-known deployments; a coefficient file (.json of 'pinn calibrate' or 'pinn
    coefficients --json') by its coefficients, the errors of its calibration and step times; an
    evaluation (folder of an experiment, or a results.csv) by its errors. Folders with predictions
    of both get a verdict by a bootstrap over deployments; else B is better only where it is in
    every held-out part.

    Examples:
      pinn compare checkpoints/pinn.safetensors mine/checkpoint.safetensors

      pinn compare before.json after.json

      pinn compare results/moe_ep results/mine
    """
    from pinn.api import scores

    found = scores.compare(**vars(sides))
    write_json(found.to_json(), json_path)
    found.show(details)
