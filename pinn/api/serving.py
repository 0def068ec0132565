"""HTTP service as a Python function."""

from __future__ import annotations

import os

from pinn.api.arguments import read_request, with_arguments
from pinn.api.requests import ServeRequest
from pinn.common.files import CHECKPOINT_VARIABLE, find_checkpoint
from pinn.common.progress import status
from pinn.errors import PinnError, warn_user

#: Packages that the service requires, for the error message if one is missing.
_PACKAGES = "fastapi uvicorn prometheus-client"


@with_arguments(request=ServeRequest)
def serve(host: str = "127.0.0.1", port: int = 8000, **given: object) -> int:
    """Serve requests over HTTP until SIGINT or SIGTERM, as ``pinn serve`` does.

    Args:
        host: Address to listen on. The default accepts connections from this machine only.
        port: Port to listen on; 0 for a free one.
        **given: Keyword arguments listed below.

    Returns:
        Number of requests that received a response.

    Raises:
        PinnError: If the packages that the service needs are missing, or the address cannot be
            used.
    """
    asked, _ = read_request(ServeRequest, given, host=host, port=port)
    try:
        from pinn.api.service import app, listening
        from pinn.api.service.answers import Limits
    except ModuleNotFoundError as error:
        raise PinnError(
            f"'pinn serve' needs the package {error.name}: run 'pip install {_PACKAGES}'"
        ) from error
    checkpoint = find_checkpoint(asked.checkpoint)
    if asked.checkpoint is not None:
        os.environ[CHECKPOINT_VARIABLE] = str(checkpoint.resolve())  # read by worker processes
    with listening.listen(asked.host, asked.port) as socket:
        is_local = listening.is_local(socket)
        if not is_local:
            warn_user(
                f"with --host {asked.host}, other machines can reach the service, which has no "
                f"authentication: put an authenticating proxy in front of it"
            )
        limits = Limits(asked.timeout, reads_files=is_local or asked.files)
        settings = app.Settings(asked.workers or os.cpu_count() or 1, asked.queue, limits)
        opened = f"listening on {listening.url(socket)} (GET /openapi.json describes all requests)"
        made = app.make_app(settings, lambda: print(opened, flush=True))
        service: app.Service = made.state.service
        with status(service.described):
            listening.run(made, socket)
    return service.metrics.answered
