"""``pinn serve``."""

import typer

from pinn.api.requests import ServeRequest
from pinn.cli.options import asked as with_options


@with_options
def serve(asked: ServeRequest) -> None:
    """Predictions, simulations and plans over HTTP, for programs in any language.

    POST /NAME takes the arguments of the Python function NAME as a JSON object and returns what
    --json of the command prints: predict, predict_many (up to 10,000 candidates), simulate, sweep,
    simulate_pools, simulate_fleet, plan. GET /openapi.json describes them, GET /health and GET
    /metrics the service. What a request gets wrong comes back as problem details.

    Examples:
      pinn serve

      pinn serve --port 9000 --workers 4 --timeout 120
    """
    from pinn.api import serving

    answered = serving.serve(**vars(asked))
    typer.echo(f"{answered:8} requests answered")
