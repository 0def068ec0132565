"""Servers on an interactive page, and simulations of each server over a grid of loads.

Prompt, output and prefix lengths have fixed values, which are the slider positions. For every
combination of lengths, the numbers of clients to simulate (nodes) are chosen separately. Nodes are
denser where the slope of latency or throughput with respect to the number of clients changes
rapidly. The page interpolates between nodes (monotone cubic, in logarithms).
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.interpolate import PchipInterpolator

from pinn.common.documents import check_size
from pinn.engines import configurations
from pinn.engines.deployment import Deployment
from pinn.engines.labels import format_label
from pinn.errors import PinnError
from pinn.memory.kv_cache import memory_fit
from pinn.memory.kv_layout import max_model_len
from pinn.planning import fleet
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run, StepRecords
from pinn.simulator.simulate import Job, map_runs
from pinn.simulator.statistics import statistic
from pinn.simulator.workloads.load import LoadFlags
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import VLLM
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.step_features import STEP_FEATURES, seconds_by_feature
from pinn.surrogate.surrogate import Surrogate

#: Default tensor-parallel sizes and weight formats. None means the checkpoint's own format.
SIZES = (1, 2, 4, 8)
FORMATS = (None, "fp8")
#: Maximum number of servers on a page; simulating one server takes several seconds.
MOST_SERVERS = 200


@dataclass(frozen=True)
class Asked:
    """Combination of GPU, tensor-parallel size and number format requested by the user.

    Attributes:
        gpu: Name of the GPU.
        tp: Tensor-parallel size.
        precision: Value of ``--quantization``; empty for the checkpoint's own format.
    """

    gpu: str
    tp: int
    precision: str


@dataclass(frozen=True)
class Server:
    """vLLM replica that starts, because its model fits in the GPUs' memory.

    Attributes:
        asked: GPU, tensor-parallel size and number format as requested.
        latency: Latency model of the deployment.
        half_widths: Half-widths of the 90 % intervals of TPOT and TTFT, in log units; None if the
            checkpoint has no intervals.
    """

    asked: Asked
    latency: LinearLatency
    half_widths: dict[str, float] | None

    @property
    def deployment(self) -> Deployment:
        """Model, GPU and resolved engine configuration."""
        return self.latency.deployment

    @property
    def format(self) -> str:
        """Name of the weights' number format."""
        return format_label(self.deployment)

    @property
    def kv_tokens(self) -> int:
        """Capacity of the KV cache in tokens."""
        return memory_fit(self.deployment).kv_tokens or 0

    @property
    def max_model_len(self) -> int:
        """Maximum context length: prompt and output tokens of a request."""
        return max_model_len(self.deployment)


def find_servers(
    shared: Mapping[str, object],
    gpus: Sequence[str],
    sizes: Sequence[int],
    formats: Sequence[str | None],
    checkpoint: Path,
) -> tuple[list[Server], list[tuple[Asked, str]]]:
    """Build the deployment of every combination and predict its coefficients.

    Args:
        shared: Model and flags of all servers, keys of ``pinn.engines.configurations.KEYS``.
        gpus: GPU names or datasheet paths.
        sizes: Tensor-parallel sizes.
        formats: Number formats; None means the checkpoint's own format.
        checkpoint: Path of the network's checkpoint.

    Returns:
        Servers that start, and combinations that do not start, each with the reason.

    Raises:
        PinnError: If no server starts, or the page does not support one.
    """
    check_size(
        len(gpus) * len(sizes) * len(formats),
        MOST_SERVERS,
        "the number of servers of a page",
        "give fewer GPUs or sizes",
    )
    started: dict[tuple[str, int, str], tuple[Asked, Deployment]] = {}
    left_out: list[tuple[Asked, str]] = []
    for gpu, form, size in itertools.product(gpus, formats, sizes):
        row = {**shared, "gpu": gpu, "tensor_parallel_size": size}
        row |= {"precision": form} if form else {}
        asked = Asked(load_gpu(gpu).name, size, form or "")
        deployment, reason = _started(row)
        if deployment is None:
            left_out.append((asked, reason))
        else:
            # Skip duplicates: the checkpoint's own format may equal one of the requested formats.
            key = (asked.gpu, size, format_label(deployment))
            started.setdefault(key, (asked, deployment))
    if not started:
        reasons = "; ".join(dict.fromkeys(reason for _, reason in left_out))
        raise PinnError(f"the engine starts with none of the requested GPUs and flags: {reasons}")
    found = Surrogate.load(checkpoint).coefficients([each for _, each in started.values()])
    servers = [
        Server(asked, LinearLatency(deployment, beta, alpha), _half_widths(checkpoint, deployment))
        for (asked, deployment), beta, alpha in zip(
            started.values(), found.beta, found.alpha, strict=True
        )
    ]
    return servers, left_out


def _half_widths(checkpoint: Path, deployment: Deployment) -> dict[str, float] | None:
    found = fleet.prediction_interval(checkpoint, deployment)
    if found is None:
        return None
    return {"tpot": found.bad.step, "ttft": max(found.bad.step, found.bad.request)}


def _started(row: Mapping[str, object]) -> tuple[Deployment | None, str]:
    """Return the deployment of a configuration, or None and why it does not start."""
    try:
        deployment = configurations.make_deployment(configurations.canonical(row))
    except PinnError as error:
        return None, str(error)
    _check_supported(deployment)
    fit = memory_fit(deployment)
    return (deployment, "") if fit.fits else (None, fit.reason)


def _check_supported(deployment: Deployment) -> None:
    """Raise an error if the page does not support a deployment's engine or parallelism."""
    recipe = deployment.recipe
    unsupported = {
        f"engine {deployment.serving.engine}": deployment.serving.engine != VLLM,
        "pipeline parallelism": recipe.pipeline_parallel_size > 1,
        "data parallelism": recipe.data_parallel_size > 1,
        "speculative decoding": recipe.speculation is not None,
    }
    wrong = [name for name, found in unsupported.items() if found]
    if wrong:
        raise PinnError(
            "the page supports only vLLM without pipeline parallelism and "
            f"speculative decoding, got {', '.join(wrong)}: use 'pinn simulate'"
        )


#: Lengths are uniformly distributed around a slider's value, with this relative half-width. They
#: are random because clients with equal lengths would send all their requests simultaneously.
RANGE_RATIO = 0.3
#: Number of requests per client in a load, in addition to ``Lengths.further_requests``.
REQUESTS_PER_CLIENT = 4
#: Numbers of clients to simulate first, up to the maximum that fits the server. They include both
#: ends of the ranges of decodes that are padded to the same CUDA graph (5 to 8, 9 to 16, ...).
_FIRST_NODES = (1, 2, 4, 5, 8, 9, 16, 17, 24, 25, 32, 64, 192)
#: Maximum log difference between a node (a simulated number of clients) and the interpolation from
#: all other nodes, for TTFT, ITL and throughput. Halving the distance between nodes at least halves
#: the interpolation error, so errors between nodes are below half of these values.
_TOLERANCES = (0.09, 0.05, 0.05)
#: Minimum ratio between neighbouring nodes (simulated numbers of clients).
_LEAST_RATIO = 1.1
#: Parts of a step that step features belong to, without duplicates, in the order of the features.
PARTS = tuple(dict.fromkeys(feature.part for feature in STEP_FEATURES.values()))


@dataclass(frozen=True)
class Stops:
    """Simulated slider positions in tokens, and the maximum number of clients.

    Attributes:
        prompts: Prompt lengths in tokens.
        outputs: Output lengths in tokens.
        prefixes: Lengths of the shared prefix in tokens.
        most_clients: Maximum number of clients of a closed loop.
    """

    prompts: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384)
    outputs: tuple[int, ...] = (64, 256, 1024)
    prefixes: tuple[int, ...] = (0, 4096)
    most_clients: int = 512


STOPS = Stops()


@dataclass(frozen=True)
class Lengths:
    """Token lengths of a load's requests: means of uniform distributions.

    Attributes:
        prompt: Mean number of prompt tokens, excluding the prefix.
        output: Mean number of generated tokens.
        prefix: Number of tokens of the prefix that all prompts share.
    """

    prompt: int
    output: int
    prefix: int

    def load(self, clients: int) -> LoadFlags:
        """Return a closed loop of ``clients`` clients, as flags of ``pinn simulate``."""
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
        """Number of requests of a load in addition to ``REQUESTS_PER_CLIENT`` per client.

        Loads with short outputs get more requests, since each request has fewer steps.
        """
        return 40 + 12288 // self.output


@dataclass(frozen=True)
class Node:
    """Mean latencies, throughput and step times of one simulation.

    Attributes:
        ttft_s: Mean time to first token, in seconds.
        itl_s: Mean inter-token latency, in seconds.
        tokens_per_s: Output tokens per second of the server.
        decode_parts_s: Time in seconds of each of ``PARTS``, averaged over steps without prompt
            tokens; empty if there is no such step.
        mixed_parts_s: Time in seconds of each of ``PARTS``, averaged over steps with prompt tokens;
            empty if there is no such step.
    """

    ttft_s: float
    itl_s: float
    tokens_per_s: float
    decode_parts_s: tuple[float, ...]
    mixed_parts_s: tuple[float, ...]


@dataclass(frozen=True)
class Column:
    """Simulations of one server with fixed request lengths and several numbers of clients.

    Attributes:
        lengths: Token lengths of the requests.
        most_clients: Maximum number of clients whose requests can run concurrently.
        nodes: Mean metrics of a simulation, by its number of clients.
    """

    lengths: Lengths
    most_clients: int
    nodes: dict[int, Node] = field(default_factory=dict)

    def too_coarse(self) -> list[int]:
        """Return additional numbers of clients to simulate.

        They lie on both sides of nodes for which interpolation from all other nodes errs by more
        than ``_TOLERANCES``.
        """
        clients = sorted(self.nodes)
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
    """Simulate a server at all combinations of lengths whose requests fit in its KV cache."""
    columns = list(_columns(server, stops))
    missing = [
        (column, clients)
        for column in columns
        for clients in sorted({*_FIRST_NODES, column.most_clients})
        if clients <= column.most_clients
    ]
    while missing:
        jobs = (
            Job(server.deployment, column.lengths.load(clients).draw(None, 0), server.latency)
            for column, clients in missing
        )
        for (column, clients), node in zip(missing, map_runs(_node, jobs), strict=True):
            column.nodes[clients] = node
        changed = {id(column): column for column, _ in missing}.values()
        missing = [(column, clients) for column in changed for clients in column.too_coarse()]
    return columns


def _columns(server: Server, stops: Stops) -> Iterator[Column]:
    for tokens in itertools.product(stops.prompts, stops.outputs, stops.prefixes):
        lengths = Lengths(*tokens)
        longest = sum(math.ceil((1 + RANGE_RATIO) * n) for n in (lengths.prompt, lengths.output))
        fits = lengths.prefix + longest <= min(server.max_model_len, server.kv_tokens)
        held = (server.kv_tokens - lengths.prefix) // (lengths.prompt + lengths.output)
        most = min(held, server.deployment.recipe.max_requests, stops.most_clients)
        if fits and most >= 1:
            yield Column(lengths, most)


def _node(job: Job, run: Run) -> Node:
    requests = run.requests
    prompts = run.steps["prefill_requests"] > 0
    duration_s = requests.finish_s.max() - requests.arrival_s.min()
    return Node(
        float(requests.ttft_s.mean()),
        statistic(*run.gaps.per_token, "mean"),
        float(requests.output_tokens.sum() / duration_s),
        _parts(job, run, ~prompts),
        _parts(job, run, prompts),
    )


def _parts(job: Job, run: Run, chosen: np.ndarray) -> tuple[float, ...]:
    """Return the time in seconds of each part of a step, averaged over the steps in ``chosen``."""
    if not chosen.any():
        return ()
    weights = chosen[None, :] / chosen.sum()
    mean = StepRecords(weights @ run.steps.table)
    features = deployment_features(job.deployment, mean.sums)[0]
    seconds = seconds_by_feature(features, job.latency.beta)
    of_part = dict.fromkeys(PARTS, 0.0)
    for feature, value in zip(STEP_FEATURES.values(), seconds, strict=True):
        of_part[feature.part] += float(value)
    return tuple(of_part.values())
