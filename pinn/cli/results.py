"""``pinn results``."""

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
    """Errors on held-out models or GPUs: median / mean absolute percentage error per method.

    One row per held-out model or GPU: this project's network beside what else predicts it. A table
    beside a checkpoint has to be of that checkpoint's own folds.

    Example: pinn results results/lomo/results.csv --metric ttft

    Options:
        markdown: Every method and part, as Markdown.
        models_only: With --markdown: leave out named parts of the rows.
    """
    from pinn.api import scores

    found = scores.results(**vars(which))
    write_json(found.to_json(), json_path)
    found.show(markdown, models_only)
