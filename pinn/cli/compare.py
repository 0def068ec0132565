"""Command ``pinn compare``: differences between checkpoints, coefficient files or evaluations."""

from pinn.api.score_requests import CompareRequest
from pinn.cli.options import Details, JsonPath, asked
from pinn.cli.outputs import write_json


@asked
def compare(sides: CompareRequest, details: Details = False, json_path: JsonPath = None) -> None:
    """Compare two checkpoints, coefficient files or evaluations, metric by metric.

    Checkpoints (.safetensors) are compared by held-out errors and by step times of well-known
    deployments; coefficient files (.json of 'pinn calibrate' or 'pinn coefficients --json') by
    coefficients, calibration errors and step times; evaluations (a folder of results, or its
    results.csv) by errors.

    The verdict is based on a bootstrap over deployments if both evaluations have predictions.csv.
    Otherwise B counts as better only if its error is smaller on every held-out part.

    Examples:
      pinn compare checkpoints/pinn.safetensors mine/checkpoint.safetensors

      pinn compare before.json after.json

      pinn compare results/moe_ep results/mine
    """
    from pinn.api import scores

    found = scores.compare(**vars(sides))
    write_json(found.to_json(), json_path)
    found.show(details)
