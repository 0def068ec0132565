"""Replicas and the API servers before them: who belongs to whom, what waits, what drafts give."""

from pinn.simulator import arrays
from pinn.simulator.compiler import compiled_inside

# Who belongs to whom: replicas step in groups, and each copy of the deployment has API servers.
#
# Replicas are numbered copy by copy. Those of one copy step together where they share experts,
# each on its own otherwise, so a group never reaches beyond its copy.


def group_of(engine, replica):
    """The group that a replica steps with."""
    return replica * engine.n_groups // engine.n_replicas


def first_of(engine, group):
    """The first of the replicas that step together."""
    return group * (engine.n_replicas // engine.n_groups)


def replicas_of(engine, group):
    """The replicas that step together."""
    return range(first_of(engine, group), first_of(engine, group + 1))


def first_server(engine, replica):
    """The first API server of a replica's copy."""
    return replica * engine.n_copies // engine.n_replicas * (engine.n_servers // engine.n_copies)


def server_of(engine, r):
    """The API server that a request came to: those of a copy take turns.

    Where requests go round several copies, a copy's own come at even distances, so each round
    begins with another server.
    """
    begin = r // engine.n_replicas if engine.n_copies > 1 else 0
    turn = (begin + r) % (engine.n_servers // engine.n_copies)
    return arrays.servers(engine, first_server(engine, arrays.requests(engine, r).replica) + turn)


# API servers: processes that take requests in and stream tokens out, one thing after another.
#
# Mirrors what ``vllm/entrypoints/openai/api_server.py`` and ``vllm/v1/engine/async_llm.py`` do
# in one process under one interpreter lock: parse and tokenize each request
# (``AsyncLLM.add_request``), and handle the tokens of each step that the engine's process
# reports (``output_handler``). While it is busy with one thing the others wait, in order of
# their arrival. Requests are spread over several processes (``--api-server-count``) in turn; the
# operating system's own choice is not modelled.


def take_in(engine, r, work_s):
    """Take a request in; when that is done."""
    request, server = arrays.requests(engine, r), server_of(engine, r)
    _begin(server, request.sent_s)
    server.work[0] += 1
    server.work[1] += request.prompt
    server.free_s = max(server.free_s, request.sent_s) + work_s
    note_work(server, request.handed_work)
    return server.free_s


def hear_of_step(engine, now):
    """The engine reports a step: when each server begins with its tokens."""
    for i in range(engine.n_servers):
        server = arrays.servers(engine, i)
        server.start_s = max(server.free_s, now)


def stream(server, now, token_s):
    """Send one token of a step that ended ``now``; the server is free when it is sent."""
    _begin(server, now)
    server.work[2] += 1
    server.free_s = max(server.free_s, now) + token_s


def note_work(server, noted):
    """Remember what the server has done."""
    for i in range(3):
        noted[i] = server.work[i]


def _begin(server, now):
    """A server that is idle begins to count its work anew.

    What comes in one moment waits for each other, even if it takes no time; so does what comes as
    it ends its last task, as an engine in the same process always does that had to wait for it.
    """
    if server.free_s < now and server.came_s < now:
        server.work[0] = server.work[1] = server.work[2] = 0.0
    server.came_s = now


# Prompts that wait for others while decodes go on, so that one step takes them together.
#
# Mirrors ``tensorrt_llm/_torch/pyexecutor/py_executor.py``, as remembered:
# ``_waiting_requests``, and ``_balance_adp_requests`` where attention is data parallel. A prompt
# that waits for blocks of the cache counts as one that could run here; there it does not. Ranks
# of a dense model do not keep step here, so that none waits for another.


def prompts_wait(engine, group):
    """Whether the next step of a group's replicas leaves new prompts waiting; counts the steps."""
    if engine.prompt_wait_steps == 0:
        return False
    if engine.waits_for_all:
        return _waits_for_all(engine, group)
    return _waits_for_tokens(engine, group)


def _waits_for_tokens(engine, group):
    """Until so many steps have passed, or prompts and decodes make up a step worth taking."""
    state = arrays.groups(engine, group)
    replica = first_of(engine, group)
    if not _has_prompt(engine, replica) or arrays.replicas(engine, replica).running == 0:
        return False
    few = _step_tokens(engine, replica) < engine.prompt_wait_tokens
    if few and state.waited < engine.prompt_wait_steps:
        state.waited += 1
        return True
    state.waited = 0
    return False


def _waits_for_all(engine, group):
    """Until every replica has a prompt, one has no decodes, or so many steps have passed."""
    state = arrays.groups(engine, group)
    prompts = decodes = 0
    replicas = replicas_of(engine, group)
    for replica in replicas:
        prompts += _has_prompt(engine, replica)
        decodes += arrays.replicas(engine, replica).running > 0
    if prompts == len(replicas):
        state.waited = 0
        return False
    state.waited += 1
    if state.waited >= engine.prompt_wait_steps or decodes < len(replicas):
        state.waited = 0
        return False
    return True


def _has_prompt(engine, replica):
    """Whether a request waits and a place is free."""
    state = arrays.replicas(engine, replica)
    return arrays.waiting(engine, replica).size > 0 and state.running < engine.max_seqs


def _step_tokens(engine, replica):
    """Tokens of a step of all decodes and waiting prompts, counted up to where a wait ends."""
    state = arrays.replicas(engine, replica)
    tokens = state.running * (1 + engine.drafts)
    r = arrays.waiting(engine, replica).head
    while r >= 0 and tokens < engine.prompt_wait_tokens:
        request = arrays.requests(engine, r)
        tokens += request.prompt + request.generated - request.computed
        r = request.after
    return tokens


# Drafted tokens that a step has verified: how many of them a request keeps.
#
# ``vllm/v1/core/sched/scheduler.py: Scheduler.update_from_output``: tokens are accepted up to
# the first that the model would not have said, and those after it count as never computed.
# Whether one is accepted is drawn with a number that belongs to the request and to its place in
# the output, whatever the deployment: runs that are compared draw the same numbers.

#: Whole numbers of 31 bits, whose products fit in 64; two odd multipliers of a hash with few
#: biases (github.com/skeeto/hash-prospector), the second cut to 31 bits.
_MASK, _FIRST, _SECOND, _STRIDE = 0x7FFFFFFF, 0x21F0AAAD, 0x735A2D97, 0x1E3779B1


def verified_tokens(engine, r, sampled):
    """Tokens that a step gives to a request: the next one and the drafted ones that are accepted.

    Args:
        engine: The engine.
        r: The request.
        sampled: Tokens that the step sampled of it: 1 + the drafted ones.
    """
    request, drafted = arrays.requests(engine, r), sampled - 1
    if drafted == 0:
        return 1
    number, accepted = uniform_number(r, request.generated), 0
    most = min(drafted, engine.n_chances)
    while accepted < most and number < arrays.chances(engine, accepted):
        accepted += 1
    request.drafted_tokens += drafted
    request.accepted_tokens += accepted
    accepted = min(accepted, request.output - request.generated - 1)
    if request.unverified >= drafted:  # else it was preempted, and nothing of it is computed
        request.unverified -= drafted
        request.computed -= drafted - accepted
    request.worked -= drafted - accepted
    return 1 + accepted


def uniform_number(r, place):
    """A number from 0 to 1 that belongs to a request and a place in its output."""
    bits = _mixed((r * _STRIDE & _MASK) ^ _mixed(place + 1))
    return bits / (_MASK + 1)


def _mixed(bits):
    bits = (bits ^ (bits >> 16)) * _FIRST & _MASK
    bits = (bits ^ (bits >> 15)) * _SECOND & _MASK
    return bits ^ (bits >> 15)


compiled_inside(__name__)
