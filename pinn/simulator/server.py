"""API servers: processes that take requests in and stream tokens out, one thing after another.

Mirrors what ``vllm/entrypoints/openai/api_server.py`` and ``vllm/v1/engine/async_llm.py`` do in one
process under one interpreter lock: parse and tokenize each request (``AsyncLLM.add_request``), and
handle the tokens of each step that the engine's process reports (``output_handler``). While it is
busy with one thing the others wait, in order of their arrival. Requests are spread over several
processes (``--api-server-count``) in turn; the operating system's own choice is not modelled.
"""

from __future__ import annotations

from pinn.simulator import arrays
from pinn.simulator.jit import inner
from pinn.simulator.topology import server_of


@inner
def take_in(engine, r, work_s):
    """Take a request in; when that is done."""
    request, server = arrays.requests(engine, r), server_of(engine, r)
    _begin(server, request.sent_s)
    server.requests += 1
    server.prompt_tokens += request.prompt
    server.free_s = max(server.free_s, request.sent_s) + work_s
    request.handed_requests = server.requests
    request.handed_prompt_tokens = server.prompt_tokens
    request.handed_streamed = server.streamed
    return server.free_s


@inner
def hear_of_step(engine, now):
    """The engine reports a step: when each server begins with its tokens."""
    for i in range(engine.n_servers):
        server = arrays.servers(engine, i)
        server.start_s = max(server.free_s, now)


@inner
def stream(server, now, token_s):
    """Send one token of a step that ended ``now``; the server is free when it is sent."""
    _begin(server, now)
    server.streamed += 1
    server.free_s = max(server.free_s, now) + token_s


@inner
def note_first(request, server):
    """Remember the request's first token: when it was sent, and the work before it."""
    request.first_sent_s = server.free_s
    request.first_requests = server.requests
    request.first_prompt_tokens = server.prompt_tokens
    request.first_streamed = server.streamed


@inner
def note_last(request, server):
    """Remember the request's last token: when it was sent, and the work before it."""
    request.last_sent_s = server.free_s
    request.last_requests = server.requests
    request.last_prompt_tokens = server.prompt_tokens
    request.last_streamed = server.streamed


@inner
def _begin(server, now):
    """A server that is idle begins to count its work anew.

    What comes in one moment waits for each other, even if it takes no time; so does what comes as
    it ends its last task, as an engine in the same process always does that had to wait for it.
    """
    if server.free_s < now and server.came_s < now:
        server.requests = server.prompt_tokens = server.streamed = 0.0
    server.came_s = now
