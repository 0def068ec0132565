"""Routers in front of identical servers: routing policies, and the scores that rank servers.

A Kubernetes Service sends each connection to a server at random. Round robin and least requests are
policies of nginx, Envoy and HAProxy. ``prefix-aware`` follows the inference scheduler of llm-d: its
endpoint picker selects the server with the highest weighted sum of its plugins' scores.

The configuration for scheduler v0.8.0 in llm-d-planner 0.3.3 on PyPI (``planner/configuration/
templates/llmd/values.yaml.j2``) has only ``prefix-cache-scorer``, with a weight, and
``max-score-picker``. The scorers ``queue-scorer`` and ``kv-cache-utilization-scorer``, the formula
of every score, and the default weights are assumptions: no package with their source was found.
"""

from pinn.common.documents import comma_separated
from pinn.errors import PinnError

RANDOM, ROUND_ROBIN, LEAST_REQUESTS, PREFIX_AWARE = (
    "random",
    "round-robin",
    "least-requests",
    "prefix-aware",
)
#: Names of the routing policies; their codes in ``pinn.simulator.state`` are 1, 2, ... in this
#: order.
ROUTERS = (RANDOM, ROUND_ROBIN, LEAST_REQUESTS, PREFIX_AWARE)

PREFIX_CACHE, QUEUE, KV_USE = "prefix-cache", "queue", "kv-cache-utilization"
#: Assumed weights of the scorers in ``prefix-aware`` routing. llm-d-planner 0.3.3 configures only
#: the prefix cache scorer, whose weight has no effect without other scorers.
DEFAULT_WEIGHTS = {PREFIX_CACHE: 3.0, QUEUE: 2.0, KV_USE: 2.0}


def read_weights(text: str) -> dict[str, float]:
    """Parse the weight of each scorer; scorers that the text omits get 0.

    Args:
        text: Scorers and weights, such as ``prefix-cache=3,queue=2``; empty for the defaults. The
            suffix ``-scorer`` of the plugins' names is optional.

    Raises:
        PinnError: If a scorer is unknown, or a weight is negative or not finite.

    >>> read_weights("prefix-cache=3, queue-scorer=1")
    {'prefix-cache': 3.0, 'queue': 1.0, 'kv-cache-utilization': 0.0}
    """
    if not text.strip():
        return dict(DEFAULT_WEIGHTS)
    found = dict.fromkeys(DEFAULT_WEIGHTS, 0.0)
    for word in comma_separated(text):
        name, _, value = word.partition("=")
        name = name.strip().removesuffix("-scorer")
        try:
            weight = float(value)
        except ValueError:
            weight = -1.0
        if name not in found or not 0 <= weight < float("inf"):
            known = ", ".join(found)
            raise PinnError(
                "--router-weights must be pairs of a scorer and a weight of 0 or more, such as "
                f"prefix-cache=3,queue=2, got {word!r:.60}; the scorers are {known}"
            )
        found[name] = weight
    return found
