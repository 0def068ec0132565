"""HTTP application of the service: routes, limits and errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import pinn
from pinn.api.service import answers, problems, schemas
from pinn.api.service.endpoints import ENDPOINTS, Endpoint
from pinn.api.service.lanes import Lane, ProcessEndedError, QueueFullError, TooSlowError
from pinn.api.service.metrics import MEDIA_TYPE, Metrics
from pinn.common.files import json_text
from pinn.errors import PinnError

#: Maximum size of a request body, in bytes.
MOST_BODY_BYTES = 8 * 2**20
#: HTTP response header with the warnings, as a JSON list.
WARNINGS = "Pinn-Warnings"
#: HTTP status recorded if a client disconnects before the response.
GONE = 499
#: Value of the Retry-After header in seconds when all worker processes are busy, by type of
#: request.
_RETRY_S = {"predictions": 1, "simulations": 10}


@dataclass(frozen=True)
class Settings:
    """Numbers of processes and waiting requests of a service, and limits on each request.

    Attributes:
        processes: Number of worker processes for predictions, and number of additional processes
            for simulations and plans.
        most_waiting: Maximum number of waiting requests, separately for predictions and for
            simulations.
        limits: Time limit of each request, and whether it may name files.
    """

    processes: int
    most_waiting: int
    limits: answers.Limits


class Service:
    """Worker processes, cached responses and metrics behind the HTTP routes."""

    def __init__(self, settings: Settings) -> None:
        self.metrics = Metrics()
        self.limits = settings.limits
        self.kept = answers.KeptAnswers()
        size = settings.processes, settings.most_waiting, settings.limits.timeout_s
        self.lanes = {name: Lane(*size) for name in _RETRY_S}
        for name, lane in self.lanes.items():
            self.metrics.watch(name, lane)

    async def respond(self, endpoint: Endpoint, request: Request) -> Response:
        """Return the response to a request of an endpoint, cached or computed."""
        media = request.headers.get("content-type", "")
        if media.partition(";")[0].strip().lower() != "application/json":
            fault = f"Content-Type must be application/json, got {media!r:.60}"
            return refusal(415, f"{fault}: send the header 'Content-Type: application/json'")
        try:
            content = await _body(request)
        except ClientDisconnect:
            return Response(status_code=GONE)
        if content is None:
            return refusal(
                413,
                f"the request body must have at most {MOST_BODY_BYTES:,} bytes, got more: split "
                f"the body into several requests",
            )
        try:
            key = self.kept.key(endpoint.name, content)
        except (PinnError, OSError) as error:
            return refusal(500, error)
        answer = self.kept.find(key)
        if answer is not None:
            self.metrics.kept.inc()
            return _response(answer)
        return await self._computed(endpoint, request, content, key)

    async def _computed(
        self, endpoint: Endpoint, request: Request, content: bytes, key: str
    ) -> Response:
        """Return the response that a worker process computes, unless the client disconnects."""
        name = "simulations" if endpoint.is_long else "predictions"
        run = self.lanes[name].run(answers.compute, endpoint.name, content, self.limits)
        job, gone = asyncio.create_task(run), asyncio.create_task(_gone(request))
        try:
            await asyncio.wait((job, gone), return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                return Response(status_code=GONE)
            answer = job.result()
        except QueueFullError:
            seconds = str(_RETRY_S[name])
            return refusal(
                503,
                f"{self.lanes[name].waiting} requests are already waiting for a free worker "
                f"process: retry in {seconds} s",
                {"Retry-After": seconds},
            )
        except TooSlowError:
            return refusal(
                504,
                f"computing the answer took longer than {self.limits.timeout_s:g} s: send a "
                f"smaller request, or start the service with a longer --timeout",
            )
        except ProcessEndedError:
            return refusal(
                500,
                "the worker process terminated, probably because it ran out of memory: send a "
                "smaller request",
            )
        finally:
            job.cancel()
            gone.cancel()
        self.kept.keep(key, answer)
        return _response(answer)

    def health(self) -> dict[str, Any]:
        """Return the JSON content of ``/health``."""
        busy = {
            name: {"running": lane.running, "waiting": lane.waiting}
            for name, lane in self.lanes.items()
        }
        return {"status": "ok", "version": pinn.__version__, **busy}

    def described(self) -> str:
        """Return a sentence with the numbers of running and waiting HTTP requests."""
        lanes = self.lanes.values()
        busy = f"{sum(lane.running for lane in lanes)} running"
        waiting = f"{sum(lane.waiting for lane in lanes)} waiting"
        return f"{self.metrics.answered:,} requests answered, {busy}, {waiting}"

    def close(self) -> None:
        """Terminate all worker processes."""
        for lane in self.lanes.values():
            lane.close()


async def _body(request: Request) -> bytes | None:
    """Return the body of a request; None if it is too large."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MOST_BODY_BYTES:
            return None
    return bytes(content)


async def _gone(request: Request) -> None:
    """Wait until the client of a request disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _response(answer: answers.Answer) -> Response:
    headers = {WARNINGS: json_text(answer.warned)} if answer.warned else {}
    media = "application/json" if answer.status == 200 else problems.MEDIA_TYPE
    return Response(answer.content, answer.status, headers, media)


def refusal(status: int, detail: object, headers: dict[str, str] | None = None) -> Response:
    """Return an error response with a problem details document (RFC 9457)."""
    return Response(problems.problem(status, detail), status, headers, problems.MEDIA_TYPE)


def make_app(settings: Settings, started: Callable[[], object] = lambda: None) -> FastAPI:
    """Return the FastAPI application of the HTTP service.

    Args:
        settings: Numbers of processes and waiting requests, and limits on each request.
        started: Function to call as soon as the service can handle requests.
    """
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(service.lanes["predictions"].warm_up(answers.warm_up))
        started()
        yield
        service.close()
        warming.cancel()
        with suppress(asyncio.CancelledError):
            await warming

    app = FastAPI(
        title="pinn",
        version=pinn.__version__,
        description=(pinn.__doc__ or "").partition("\n")[0],
        lifespan=lifespan,
        docs_url=None,  # FastAPI's docs page would load scripts from another host
        redoc_url=None,
    )
    app.state.service = service
    _add_routes(app, service)
    app.add_middleware(_Counted, metrics=service.metrics)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        known = ", ".join(sorted(route.path for route in app.routes))  # type: ignore[attr-defined]
        fault = f"{request.method} {request.url.path}: {error.detail}: known paths are {known}"
        return refusal(error.status_code, fault, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(_: Request, _error: Exception) -> Response:
        return refusal(500, "internal error, recorded in the service's log: please report it")

    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.get("/health", summary="Health and current load of the service.")
    async def health() -> dict[str, Any]:
        return service.health()

    @app.get("/metrics", summary="Metrics for Prometheus.", response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=MEDIA_TYPE)

    def route(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return await service.respond(endpoint, request)

        return respond

    for name, endpoint in ENDPOINTS.items():
        app.add_api_route(
            f"/{name}", route(endpoint), methods=["POST"], name=name, response_class=Response,
            summary=schemas.summary(endpoint), openapi_extra=schemas.operation(endpoint),
        )  # fmt: skip


class _Counted:
    """ASGI middleware that counts requests by endpoint and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            name = scope["path"].strip("/")
            endpoint = name if name in ENDPOINTS else "other"
            self._metrics.count(endpoint, status, time.perf_counter() - begin)
