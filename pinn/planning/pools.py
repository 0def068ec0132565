"""Candidates with disaggregated prefill/decode, whose replicas have prefill and decode workers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from pathlib import Path

from pinn.engines.configurations import Values, parse_pool, pool_text
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.labels import format_label
from pinn.errors import PinnError
from pinn.planning.candidate import Candidate, Rescale
from pinn.planning.candidates import (
    LAYOUT,
    SearchSpace,
    deployments_of,
    predicted,
    read_candidates_file,
)
from pinn.planning.plan import RejectedCandidate
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.pools import Link, Pool, default_link, halves, simulate_pools
from pinn.simulator.run import Run
from pinn.simulator.simulate import EarlyStop
from pinn.simulator.workloads.workload import Workload
from pinn.specs.gpu import network_bytes_per_s
from pinn.specs.serving import VLLM


@dataclass(frozen=True, kw_only=True)
class JoinedRun(Run):
    """Run of two pools: steps of the decode workers, and requests as clients see them.

    Attributes:
        prefill: Run of the prefill workers.
    """

    prefill: Run


@dataclass(frozen=True, kw_only=True)
class PoolsCandidate(Candidate):
    """Replica with prefill and decode workers; inherited fields describe a decode worker.

    Several replicas form one prefill pool and one decode pool with multiples of these workers.

    Attributes:
        prefill: Candidate that describes a prefill worker.
        prefill_servers: Number of prefill workers of a replica.
        decode_servers: Number of decode workers of a replica.
        own: Names of flags set for individual pools, as opposed to flags shared by all servers.
    """

    prefill: Candidate
    prefill_servers: int
    decode_servers: int
    own: Sequence[str]

    @property
    def deployments(self) -> list[Deployment]:
        """Deployments of a prefill and of a decode worker."""
        return [self.prefill.deployment, self.deployment]

    @property
    def gpus(self) -> int:
        """Number of GPUs of one replica."""
        return self.prefill_servers * self.prefill.gpus + self.decode_servers * super().gpus

    @property
    def hardware(self) -> tuple[str, str]:
        """Unique key, so that each pair of pools is screened separately."""
        return (self.label, self.source)

    @property
    def label(self) -> str:
        """Label such as ``H100-SXM 2x tp=2 prefill + 1x tp=4 decode bf16``."""
        prefill, decode = self.pool_texts(1)
        gpu, form = self.deployment.gpu.name, format_label(self.deployment)
        return f"{gpu} {prefill} prefill + {decode} decode {form}"

    @property
    def prompt_latency(self) -> LinearLatency:
        """Latency model of the prefill workers."""
        return self.prefill.latency

    @property
    def assumptions(self) -> list[str]:
        """Sentences about the assumed network between the pools."""
        link = network_bytes_per_s(self.deployment.gpu) / 1e9
        return [f"Assumed KV transfers between the pools: {link:g} GB/s per GPU."]

    def pool_texts(self, replicas: int) -> tuple[str, str]:
        """Return the pools of ``replicas`` as values of ``--prefill`` and ``--decode``."""
        prefill, decode = (
            pool_text(servers, {name: row[name] for name in self.own if name in row})
            for row, (servers, _) in zip(
                (self.prefill.configuration, self.configuration),
                self.pool_sizes(replicas),
                strict=True,
            )
        )
        return prefill, decode

    def pool_sizes(self, replicas: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return (number of servers, GPUs per server) of the prefill and of the decode pool."""
        return (
            (replicas * self.prefill_servers, self.prefill.gpus),
            (replicas * self.decode_servers, super().gpus),
        )

    def serve(
        self, workload: Workload, engine: EngineSpec, rescale: Rescale, early_stop: EarlyStop | None
    ) -> Run:
        """Simulate the two pools of ``engine.replicas`` replicas."""
        del early_stop  # a simulation of two pools cannot be stopped early
        sizes = self.pool_sizes(engine.replicas)
        prefill, decode = (
            Pool(one.deployment, rescale(one.latency), replace(engine, replicas=servers))
            for one, (servers, _) in zip((self.prefill, self), sizes, strict=True)
        )
        link = Link(default_link(prefill, decode).bytes_per_s, engine.kv_transfer_latency_s)
        found = simulate_pools(prefill, decode, workload, link)
        return JoinedRun(**vars(found.decode), prefill=found.prefill)

    def parts(self, run: Run) -> list[tuple[Run, LinearLatency]]:
        """Return the run and latency model of the prefill workers, then of the decode workers."""
        assert isinstance(run, JoinedRun), "a run of two pools"
        return [(run.prefill, self.prefill.latency), (run, self.latency)]


def find_pools(
    space: SearchSpace, workload: Workload, checkpoint: Path, path: Path | None = None
) -> tuple[list[Candidate], list[RejectedCandidate]]:
    """Return pairs of a listed prefill and decode pool with which the engine would start.

    Pairs whose numbers of servers are a multiple of a smaller pair's are omitted.

    Args:
        space: Engine, GPUs and flags of all pairs.
        workload: Requests, each of which must fit on an idle server.
        checkpoint: Checkpoint of the network that predicts coefficients.
        path: File like ``conf/plan/candidates.yaml``; None for that file.

    Raises:
        PinnError: If the file lists no pools, or planning does not support the engine's pools.
    """
    if tuple(space.engines) != (VLLM,):
        raise PinnError(
            f"--disaggregate is for {VLLM} only, got --engine "
            f"{','.join(space.engines)}: omit one of the two flags, or use 'pinn simulate "
            f"--prefill --decode', which supports other engines"
        )
    if space.engine.kv_transfer_bytes_per_s != EngineSpec().kv_transfer_bytes_per_s:
        raise PinnError(
            "--kv-transfer-bytes-per-s cannot be used with --disaggregate, which "
            "assumes the GPUs' network ports: omit --kv-transfer-bytes-per-s, or use 'pinn "
            "simulate --kv-link-gb-per-s'"
        )
    first, _ = halves(workload)
    listed = read_candidates_file(path).pools
    if listed is None:
        raise PinnError(f"{path} has no pools, which --disaggregate combines: {LAYOUT}")
    found: list[Candidate] = []
    rejected: list[RejectedCandidate] = []
    for base in space.bases:
        ahead, ill = _servers("prefill", listed.prefill, base, first, workload, space, checkpoint)
        behind, too = _servers("decode", listed.decode, base, workload, workload, space, checkpoint)
        rejected += [*ill, *too]
        for (prefills_n, own, prefill), (decodes_n, own_too, decode) in product(ahead, behind):
            pair = PoolsCandidate(
                **vars(decode),
                prefill=prefill,
                prefill_servers=prefills_n,
                decode_servers=decodes_n,
                own=tuple({**own, **own_too}),
            )
            # Skip multiples of a smaller pair of pools, because they equal several replicas of that
            # pair.
            is_new = gcd(prefills_n, decodes_n) == 1
            if is_new and (space.most_gpus is None or pair.gpus <= space.most_gpus):
                found.append(pair)
    return found, rejected


def _servers(
    role: str,
    texts: Iterable[str],
    shared: Values,
    served: Workload,
    workload: Workload,
    space: SearchSpace,
    checkpoint: Path,
) -> tuple[list[tuple[int, Values, Candidate]], list[RejectedCandidate]]:
    """Return the pools of one role with which the engine would start, and rejected pools.

    A pool is a tuple (number of servers, flags of the pool, candidate that describes one server).
    """
    fitting: dict[Deployment, Values] = {}
    pools: list[tuple[int, Values, Deployment]] = []
    rejected = []
    for text in dict.fromkeys(texts):
        count, flags = parse_pool(text, "pools")
        for name in ("gpu", "engine"):
            if name in flags:
                one = f"but both pools of a candidate have the same {name}"
                raise PinnError(f"{text!r} of pools sets {name}, {one}: omit {name}")
        row = {**shared, **flags}
        for given, deployment, reason in deployments_of([row], space.engine, workload, served):
            if reason is None:
                fitting[deployment] = given
                pools.append((count, flags, deployment))
            else:
                gpu = deployment.gpu.name
                rejected.append(RejectedCandidate(f"{gpu} {text} {role}", gpu, reason, False))
    started = predicted(fitting, {}, checkpoint, space)
    known = {each.deployment: each for each in started}
    return [(count, flags, known[d]) for count, flags, d in pools], rejected
