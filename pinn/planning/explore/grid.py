"""Simulations of one server over a grid of loads, refined where a curve over clients bends.

Prompt, output and prefix lengths are fixed stops. For every combination of them the number of
clients has nodes of its own, between which the page interpolates (monotone cubic, in logarithms).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.interpolate import PchipInterpolator

from pinn.planning.explore.servers import Server
from pinn.simulator.run import Run, StepRecords
from pinn.simulator.simulate import Job, map_runs
from pinn.simulator.workloads.load import LoadFlags
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.step_features import STEP_FEATURES

#: Lengths are uniform between 0.7 and 1.3 times the stop, so clients do not stay in lockstep.
RANGE_RATIO = 0.3
#: Requests of a load: so many for each client, and ``Lengths.further_requests``.
REQUESTS_PER_CLIENT = 4
#: First nodes: clients, up to the most that fit.
_FIRST_NODES = (1, 2, 4, 8, 16, 64, 192)
#: Largest log difference between a node and the interpolation of the others. Halving the distance
#: of nodes at least halves the error, so errors between nodes are below half of these. In the
#: order of ``Node``'s fields.
_TOLERANCES = (0.09, 0.05, 0.05)
#: Nodes are no closer than this ratio of clients.
_LEAST_RATIO = 1.1
#: Parts of a step, in the order of the features.
PARTS = tuple(dict.fromkeys(feature.part for feature in STEP_FEATURES.values()))


@dataclass(frozen=True)
class Stops:
    """Values of the sliders that are simulated, in tokens, and the most clients.

    Attributes:
        prompts: Prompt lengths.
        outputs: Output lengths.
        prefixes: Lengths of the shared prefix.
        most_clients: Most clients of a closed loop.
    """

    prompts: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384)
    outputs: tuple[int, ...] = (64, 256, 1024)
    prefixes: tuple[int, ...] = (0, 4096)
    most_clients: int = 512


STOPS = Stops()


@dataclass(frozen=True)
class Lengths:
    """Token lengths of the requests of a load: means of uniform distributions.

    Attributes:
        prompt: Prompt tokens without the prefix.
        output: Generated tokens.
        prefix: Further prompt tokens that all requests share.
    """

    prompt: int
    output: int
    prefix: int

    def load(self, clients: int) -> LoadFlags:
        """Return the load of a closed loop, as flags of ``pinn simulate``."""
        return LoadFlags(
            input_len=self.prompt,
            output_len=self.output,
            concurrency=clients,
            num_prompts=REQUESTS_PER_CLIENT * clients + self.further_requests,
            range_ratio=RANGE_RATIO,
            prefix_len=self.prefix,
        )

    @property
    def further_requests(self) -> int:
        """Requests beside those of each client: the more, the fewer steps each of them takes."""
        return 40 + 12288 // self.output

    @property
    def longest(self) -> int:
        """Most tokens of a request."""
        longest = [int(np.ceil((1 + RANGE_RATIO) * n)) for n in (self.prompt, self.output)]
        return self.prefix + sum(longest)


@dataclass(frozen=True)
class Node:
    """Means of one simulation, as ``pinn simulate`` prints them.

    Attributes:
        ttft_s: Time to first token.
        itl_s: Time between tokens.
        tokens_per_s: Output tokens per second of the server.
        decode_parts_s: Seconds of each of ``PARTS`` in the mean step without prompt tokens; empty
            if there is no such step.
        mixed_parts_s: The same for steps with prompt tokens.
    """

    ttft_s: float
    itl_s: float
    tokens_per_s: float
    decode_parts_s: tuple[float, ...]
    mixed_parts_s: tuple[float, ...]


@dataclass(frozen=True)
class Column:
    """Simulations of one server with the same lengths.

    Attributes:
        lengths: Of the requests.
        most_clients: Most clients whose requests run at once.
        nodes: Clients -> simulation.
    """

    lengths: Lengths
    most_clients: int
    nodes: dict[int, Node] = field(default_factory=dict)

    def clients(self) -> list[int]:
        """Return the numbers of clients that have a node, in increasing order."""
        return sorted(self.nodes)

    def too_coarse(self) -> list[int]:
        """Return clients to simulate, beside each node that the others do not predict."""
        clients = self.clients()
        nodes = [self.nodes[each] for each in clients]
        values = np.log([(node.ttft_s, node.itl_s, node.tokens_per_s) for node in nodes])
        found = set[int]()
        for i in range(1, len(clients) - 1):
            others = np.delete(np.log(clients), i)
            expected = PchipInterpolator(others, np.delete(values, i, 0))(np.log(clients[i]))
            if (abs(values[i] - expected) > _TOLERANCES).any():
                for low, high in itertools.pairwise(clients[i - 1 : i + 2]):
                    found |= {round((low * high) ** 0.5)} if high > _LEAST_RATIO * low else set()
        return sorted(found - set(clients))


def simulate_grid(server: Server, stops: Stops) -> list[Column]:
    """Simulate a server at all stops whose requests fit."""
    columns = list(_columns(server, stops))
    missing = [
        (column, clients)
        for column in columns
        for clients in sorted({*_FIRST_NODES, column.most_clients})
        if clients <= column.most_clients
    ]
    while missing:
        _simulate(server, missing)
        changed = {id(column): column for column, _ in missing}.values()
        missing = [(column, clients) for column in changed for clients in column.too_coarse()]
    return columns


def _columns(server: Server, stops: Stops) -> Iterator[Column]:
    for tokens in itertools.product(stops.prompts, stops.outputs, stops.prefixes):
        lengths = Lengths(*tokens)
        fits = lengths.longest <= min(server.max_model_len, server.kv_tokens)
        held = (server.kv_tokens - lengths.prefix) // (lengths.prompt + lengths.output)
        most = min(held, server.max_requests, stops.most_clients)
        if fits and most >= 1:
            yield Column(lengths, most)


def _simulate(server: Server, missing: Sequence[tuple[Column, int]]) -> None:
    """Simulate columns at numbers of clients."""
    jobs = (
        Job(server.deployment, column.lengths.load(clients).draw(None, 0), server.latency)
        for column, clients in missing
    )
    for (column, clients), node in zip(missing, map_runs(_node, jobs), strict=True):
        column.nodes[clients] = node


def _node(job: Job, run: Run) -> Node:
    requests, gaps = run.requests, run.gaps
    prompts = run.steps["prefill_requests"] > 0
    duration_s = requests.finish_s.max() - requests.arrival_s.min()
    return Node(
        float(requests.ttft_s.mean()),
        float(gaps.seconds @ gaps.count / gaps.count.sum()),
        float(requests.output_tokens.sum() / duration_s),
        _parts(job, run, ~prompts),
        _parts(job, run, prompts),
    )


def _parts(job: Job, run: Run, chosen: np.ndarray) -> tuple[float, ...]:
    """Return the seconds of each part of the mean batch of the chosen steps."""
    if not chosen.any():
        return ()
    weights = chosen[None, :] / chosen.sum()
    mean = StepRecords(weights @ run.steps.table)
    seconds = deployment_features(job.deployment, mean.sums)[0] * job.latency.beta
    of_part = dict.fromkeys(PARTS, 0.0)
    for feature, value in zip(STEP_FEATURES.values(), seconds, strict=True):
        of_part[feature.part] += float(value)
    return tuple(of_part.values())
