"""Command ``pinn results``: prediction errors on held-out models or GPUs."""

from pinn.api.score_requests import ResultsRequest
from pinn.cli.options import JsonPath, asked
from pinn.cli.outputs import write_json


@asked
def results(
    which: ResultsRequest,
    markdown: bool = False,
    models_only: bool = False,
    json_path: JsonPath = None,
) -> None:
    """Show the prediction errors on held-out models or GPUs.

    Prints the median / mean absolute percentage error of this project's network and of other
    prediction methods, with a row for each held-out model or GPU.

    Example: pinn results results/lomo/results.csv --metric ttft

    Options:
        markdown: Print every method and every part of the data, as Markdown.
        models_only: With --markdown, print rows of whole models only, without parts of their data.
    """
    from pinn.api import scores

    found = scores.results(**vars(which))
    write_json(found.to_json(), json_path)
    found.show(markdown, models_only)
