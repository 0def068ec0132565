"""Command ``pinn serve``: predictions, simulations and plans over HTTP."""

import typer

from pinn.api.requests import ServeRequest
from pinn.cli.options import asked as with_options


@with_options
def serve(asked: ServeRequest) -> None:
    """Serve predictions, simulations and plans over HTTP.

    POST /NAME takes the arguments of the Python function NAME as a JSON object and returns what the
    command prints with --json. NAME is predict, predict_many (up to 10,000 configurations),
    simulate, sweep, simulate_pools, simulate_fleet or plan. GET /openapi.json describes all
    arguments and results, GET /health and GET /metrics report on the service. Errors are returned
    as problem details (RFC 9457).

    Examples:
      pinn serve

      pinn serve --port 9000 --workers 4 --timeout 120
    """
    from pinn.api import serving

    answered = serving.serve(**vars(asked))
    typer.echo(f"{answered:8} requests answered")
