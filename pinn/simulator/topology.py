"""Who belongs to whom: replicas step in groups, and each copy of the deployment has API servers.

Replicas are numbered copy by copy. Those of one copy step together where they share experts, each
on its own otherwise, so a group never reaches beyond its copy.
"""

from __future__ import annotations

from pinn.simulator import arrays
from pinn.simulator.jit import inner


@inner
def group_of(engine, replica):
    """The group that a replica steps with."""
    return replica * engine.n_groups // engine.n_replicas


@inner
def replicas_of(engine, group):
    """(first, number) of the replicas that step together."""
    count = engine.n_replicas // engine.n_groups
    return group * count, count


@inner
def first_server(engine, replica):
    """The first API server of a replica's copy."""
    return replica * engine.n_copies // engine.n_replicas * (engine.n_servers // engine.n_copies)


@inner
def server_of(engine, r):
    """The API server that a request came to: those of a copy take turns.

    Where requests go round several copies, a copy's own come at even distances, so each round
    begins with another server.
    """
    begin = r // engine.n_replicas if engine.n_copies > 1 else 0
    turn = (begin + r) % (engine.n_servers // engine.n_copies)
    return arrays.servers(engine, first_server(engine, arrays.requests(engine, r).replica) + turn)
