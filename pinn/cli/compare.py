"""``pinn compare``."""

from pinn.api.score_requests import CompareRequest
from pinn.cli.options import Details, JsonPath, asked
from pinn.cli.outputs import write_json


@asked
def compare(sides: CompareRequest, details: Details = False, json_path: JsonPath = None) -> None:
    """Compare two checkpoints, coefficient files or evaluations, metric by metric.

    Checkpoints (.safetensors): held-out errors, and step times of well-known deployments.
    Coefficient files (.json of 'pinn calibrate' or 'pinn coefficients --json'): coefficients,
    calibration errors and step times. Evaluations (folder of an experiment, or a results.csv):
    errors.

    The verdict is by a bootstrap over deployments if both folders have predictions. Otherwise B is
    better only if its error is smaller in every held-out part.

    Examples:
      pinn compare checkpoints/pinn.safetensors mine/checkpoint.safetensors

      pinn compare before.json after.json

      pinn compare results/moe_ep results/mine
    """
    from pinn.api import scores

    found = scores.compare(**vars(sides))
    write_json(found.to_json(), json_path)
    found.show(details)
