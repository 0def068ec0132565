"""Prefill and decode apart as a candidate: a replica is so many servers of either kind."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from pathlib import Path
from typing import Any

from pinn.common import documents, files
from pinn.engines.configurations import parse_pool, pool_text
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.planning import candidates
from pinn.planning.plan import LeftOut
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.pools import Link, Pool, default_link, halves, simulate_pools
from pinn.simulator.run import Run
from pinn.simulator.simulate import Hopeless
from pinn.simulator.workloads.workload import Workload
from pinn.specs.serving import VLLM

_LAYOUT = "expected 'pools:' with lists of servers under 'prefill' and 'decode', such as 2x tp=4"


@dataclass(frozen=True, kw_only=True)
class JoinedRun(Run):
    """The decode pool's run, whose requests are as clients see them.

    Attributes:
        prefill: The prefill pool's.
    """

    prefill: Run


@dataclass(frozen=True, kw_only=True)
class PoolsCandidate(candidates.Candidate):
    """A replica of which some servers compute prompts and others, the candidate's own, generate.

    Several replicas are two pools with so many times the servers, not several pairs of pools.

    Attributes:
        prefill: One of the prefill servers.
        prefill_servers: Of a replica.
        decode_servers: Of a replica.
        own: Names of flags that each pool was given for itself.
    """

    prefill: candidates.Candidate
    prefill_servers: int
    decode_servers: int
    own: Sequence[str]

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.prefill_servers * self.prefill.gpus + self.decode_servers * super().gpus

    @property
    def hardware(self) -> tuple[Any, ...]:
        """Every pair of pools is looked at alone."""
        return (self.label, self.source)

    @property
    def label(self) -> str:
        """``H100-SXM 2x tp=2 prefill + 1x tp=4 decode bf16``."""
        prefill, decode = self.pool_texts(1)
        gpu, form = self.deployment.gpu.name, candidates.format_label(self.deployment)
        return f"{gpu} {prefill} prefill + {decode} decode {form}"

    @property
    def prompt_latency(self) -> LinearLatency:
        """Coefficients of the prefill servers."""
        return self.prefill.latency

    def pool_texts(self, replicas: int) -> tuple[str, str]:
        """The pools of so many replicas, as ``--prefill`` and ``--decode`` take them."""
        prefill, decode = (
            {name: row[name] for name in self.own if name in row}
            for row in (self.prefill.configuration, self.configuration)
        )
        return (
            pool_text(replicas * self.prefill_servers, prefill),
            pool_text(replicas * self.decode_servers, decode),
        )

    def pool_sizes(self, replicas: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Servers of either pool of so many replicas, and the GPUs of each."""
        return (
            (replicas * self.prefill_servers, self.prefill.gpus),
            (replicas * self.decode_servers, super().gpus),
        )

    @property
    def shared(self) -> dict[str, Any]:
        """The configuration of both pools, without what each was given for itself."""
        return {name: v for name, v in self.configuration.items() if name not in self.own}

    def serve(
        self,
        workload: Workload,
        engine: EngineSpec,
        misjudge: candidates.Misjudge,
        hopeless: Hopeless | None,
    ) -> Run:
        """Simulate the pools of so many replicas."""
        del hopeless  # runs of two pools always come to their end
        prefill, decode = (
            Pool(
                one.deployment, misjudge(one.latency), replace(engine, replicas=engine.replicas * n)
            )
            for one, n in ((self.prefill, self.prefill_servers), (self, self.decode_servers))
        )
        link = Link(default_link(prefill, decode).bytes_per_s, engine.kv_transfer_latency_s)
        found = simulate_pools(prefill, decode, workload, link)
        return JoinedRun(**vars(found.decode), prefill=found.prefill)

    def parts(self, run: Run) -> list[tuple[Run, LinearLatency]]:
        """The prefill pool's run, and the decode pool's."""
        assert isinstance(run, JoinedRun), "a run of two pools"
        return [(run.prefill, self.prefill.latency), (run, self.latency)]


def find_pools(
    wanted: candidates.Wanted, workload: Workload, checkpoint: Path, path: Path | None = None
) -> tuple[list[candidates.Candidate], list[LeftOut]]:
    """Every pair of the listed pools that the engine would start and that no smaller one repeats.

    Args:
        wanted: What the plan is for.
        workload: Whose requests have to fit, one at a time.
        checkpoint: Whose network gives coefficients.
        path: A file like ``conf/plan/candidates.yaml``.

    Raises:
        PinnError: If the file lists no pools, or the engine's are not modelled here.
    """
    if tuple(wanted.engines) != (VLLM,):
        raise PinnError(
            f"--disaggregate plans pools of {VLLM}, got --engine {','.join(wanted.engines)}: leave "
            "one of them out; 'pinn simulate --prefill --decode' serves other engines' pools"
        )
    if wanted.engine.kv_transfer_bytes_per_s != EngineSpec().kv_transfer_bytes_per_s:
        raise PinnError(
            "--kv-transfer-bytes-per-s with --disaggregate: pools are planned with the GPUs' own "
            "network ports: leave it out, or give 'pinn simulate' --kv-link-gb-per-s"
        )
    first, _ = halves(workload)
    prefills, decodes = read_pools(path)
    found: list[candidates.Candidate] = []
    left_out: list[LeftOut] = []
    for base in wanted.bases:
        ahead, ill = _servers(prefills, base, first, workload, wanted, checkpoint)
        left_out += [replace(each, label=f"{each.label} prefill") for each in ill]
        behind, ill = _servers(decodes, base, workload, workload, wanted, checkpoint)
        left_out += [replace(each, label=f"{each.label} decode") for each in ill]
        for (prefills_n, own, prefill), (decodes_n, own_too, decode) in product(ahead, behind):
            pair = PoolsCandidate(
                **vars(decode),
                prefill=prefill,
                prefill_servers=prefills_n,
                decode_servers=decodes_n,
                own=tuple({**own, **own_too}),
            )
            # A multiple of a smaller pair is its replicas.
            is_new = gcd(prefills_n, decodes_n) == 1
            if is_new and (wanted.most_gpus is None or pair.gpus <= wanted.most_gpus):
                found.append(pair)
    return found, left_out


def read_pools(path: Path | None) -> tuple[Sequence[str], Sequence[str]]:
    """Pools to combine: prefill, and decode.

    Raises:
        PinnError: If the file has none, or another layout.
    """
    path = path or files.conf_file("plan/candidates.yaml")
    tree = documents.read_yaml(path)
    pools = tree.get("pools") if isinstance(tree, dict) else None
    if not isinstance(pools, dict) or set(pools) != {"prefill", "decode"}:
        raise PinnError(f"{path}: --disaggregate needs pools to combine: {_LAYOUT}")
    for texts in pools.values():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise PinnError(f"{path}: {_LAYOUT}, got {texts!r:.80}")
    return pools["prefill"], pools["decode"]


def _servers(
    texts: Iterable[str],
    shared: Mapping[str, Any],
    served: Workload,
    workload: Workload,
    wanted: candidates.Wanted,
    checkpoint: Path,
) -> tuple[list[tuple[int, dict[str, Any], candidates.Candidate]], list[LeftOut]]:
    """Pools whose servers start and hold what they serve: how many, their own flags, and each."""
    fitting: dict[Deployment, dict[str, Any]] = {}
    pools: list[tuple[int, dict[str, Any], Deployment]] = []
    left_out = []
    for text in dict.fromkeys(texts):
        count, flags = _pool(text)
        row = {**shared, **flags}
        for given, deployment, reason in candidates.deployments_of(
            [row], wanted.engine, workload, served
        ):
            if reason is None:
                fitting[deployment] = given
                pools.append((count, flags, deployment))
            else:
                gpu = deployment.gpu.name
                left_out.append(LeftOut(f"{gpu} {text}", gpu, reason, False))
    started = candidates.predicted(fitting, {}, checkpoint, wanted.engine)
    known = {each.deployment: each for each in started}
    return [(count, flags, known[d]) for count, flags, d in pools], left_out


def _pool(text: str) -> tuple[int, dict[str, Any]]:
    """Servers of a pool as it is listed, and their flags."""
    count, flags = parse_pool(text, "pools")
    for name in ("gpu", "engine"):
        if name in flags:
            raise PinnError(
                f"pools: {text!r}: both pools of a candidate have one {name}: leave it out"
            )
    return count, flags
