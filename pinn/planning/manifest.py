"""Kubernetes objects that start the servers in a row of a plan, and a volume for model files.

A replica within one machine is a pod of a ``Deployment``. A replica across machines is a group of a
``LeaderWorkerSet`` (sigs.k8s.io/lws), which gives its pods ``LWS_LEADER_ADDRESS`` and
``LWS_WORKER_INDEX``. Every server has a ``Service``.
"""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import yaml

from pinn.engines.recipe import served_release
from pinn.engines.routers import RANDOM, ROUND_ROBIN
from pinn.errors import PinnError
from pinn.planning.candidate import NETWORK
from pinn.planning.plan import POOLS_UNSURE, Choice, Plan
from pinn.planning.search_extent import probability_gap, unfinished
from pinn.specs.gpu import gpu_aliases, load_gpu
from pinn.specs.serving import SGLANG, TRTLLM, VLLM

_Object = dict[str, object]

#: Names of container images, by engine. ``{}`` is replaced by the release.
_IMAGES = {
    VLLM: "vllm/vllm-openai:v{}",
    SGLANG: "lmsysorg/sglang:v{}",
    TRTLLM: "nvcr.io/nvidia/tensorrt-llm/release:{}",
}
#: Default HTTP port of each engine: ``--port`` of ``vllm/entrypoints/common/cli_args.py``,
#: ``sglang/srt/server_args.py`` and ``tensorrt_llm/commands/serve.py``.
_PORTS = {VLLM: 8000, SGLANG: 30000, TRTLLM: 8000}
#: HTTP route of all three engines that returns 200 once a server is ready: ``vllm 0.33.0
#: vllm/entrypoints/serve/instrumentator/health.py``, ``sglang 0.5.23
#: sglang/srt/entrypoints/http_server.py``.
_HEALTH = "/health"
#: Port on the first machine of a multi-machine server to which the other machines connect.
_RENDEZVOUS_PORT = 20000
#: ``_PROBE_S``: interval between health probes, in seconds. The other numbers are failures that the
#: startup, readiness and liveness probes allow. Startup may take half an hour, to load weights and
#: capture CUDA graphs.
_PROBE_S, _START_PROBES, _READY_PROBES, _LIVE_PROBES = 10, 180, 3, 6
_NAME_LENGTH = 40
#: Annotation of a Service with the routing policy that the plan's metrics assume.
_ROUTER = "pinn/router"
#: Proxy for vLLM's disaggregated prefill/decode.
_PROXY = "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py of vLLM's repository"
_NONE: Mapping[str, str] = {}
#: Size of the volume for a model's files, relative to the size of the weights. The Hugging Face
#: cache may also store files in other formats.
_FILES_SHARE = 1.5


@dataclass(frozen=True)
class _Server:
    """Servers that are started by the same command, such as all prefill workers.

    Attributes:
        name: Name of the Kubernetes objects.
        command: Arguments of the command that starts a server.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        image: Container image.
        gpu: Name of the GPU.
        gpus: Number of GPUs per server.
        machines: Number of machines per server.
        count: Number of servers.
        claim: Name of the volume claim for the model's files.
        router: Policy for routing requests to the servers; empty for one server.
    """

    name: str
    command: list[str]
    engine: str
    image: str
    gpu: str
    gpus: int
    machines: int
    count: int
    claim: str
    router: str = ""

    @property
    def pods(self) -> int:
        """Return the number of pods of all servers."""
        return self.count * self.machines


def manifest(plan: Plan, row: int = 1) -> str:
    """Return the servers of a row as YAML for ``kubectl apply -f``.

    Args:
        plan: Plan with the row.
        row: Rank of the row in the plan, from 1.

    Raises:
        PinnError: If the plan has no such row, or if the engine has no command for a replica across
            machines.
    """
    if not 1 <= row <= len(plan.choices):
        raise PinnError(
            f"the plan has no row {row}: give the rank of a row, 1 to {len(plan.choices)}"
        )
    choice = plan.choices[row - 1]
    servers = _servers(plan, choice)
    objects = [each for server in servers for each in _objects(server)]
    objects.append(_files(servers, choice))
    notes = "".join(f"# {line}\n" for line in _notes(plan, row))
    return notes + yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=100)


def deployed(plan: Plan, row: int) -> str:
    """Return a sentence about the row that a manifest deploys, and whether the plan is complete."""
    choice = plan.choices[row - 1]
    which = "recommended" if row == 1 else "not the recommended row"
    state = "provisional" if plan.stopped else "complete"
    return (
        f"Manifest: row {row} ({which}), {choice.replicas} x {choice.label}; the plan is {state}."
    )


class _Plain(yaml.SafeDumper):
    """YAML writer that repeats equal values instead of using anchors and aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """Return True for all values, so that no aliases are written."""
        del data
        return True


def _notes(plan: Plan, row: int) -> list[str]:
    """Return YAML comments on the objects' purpose, and on values that the user must complete."""
    choice = plan.choices[row - 1]
    rate = plan.ask.rate_per_s
    asked = "the maximum rate within the SLO" if rate is None else f"{rate:g} requests/s"
    asked += f" with {100 * plan.ask.headroom:g} % headroom" if plan.ask.headroom else ""
    spares = plan.ask.spare_replicas
    asked += f", {spares} of the {choice.replicas} replicas spare" if spares else ""
    checkpoints = [line.partition("  # ")[2] for line in choice.serve_command.split("\n")]
    lines = [
        f"{plan.ask.model}: {asked}; {'; '.join(plan.ask.limits)}",
        *(f"Start command: {each}." for each in dict.fromkeys(checkpoints) if each),
        f"{choice.replicas} x {choice.label}{_cost_and_chance(choice)}",
        deployed(plan, row),
        *unfinished(plan),
        *_probability(plan, choice),
        *length_limit(plan, choice),
        *choice.assumptions,
        "The optional Secret hf-token (key: token) gives access to gated models.",
        "The PersistentVolumeClaim stores downloaded models. Its storage class must support its "
        "access mode; pods on several nodes need ReadWriteMany.",
    ]
    if choice.replicas > 1 or choice.pools:
        router = choice.router or ROUND_ROBIN
        lines.append(
            f"The plan assumes {router} routing (--router of pinn simulate). "
            "A Service balances connections, not requests: put a gateway with that "
            "routing in front, such as llm-d or the router of vLLM's production stack."
        )
    by_chance = [each.point for each in choice.fleets[:-1] if each.routing == RANDOM]
    lines += [
        f"With random routing, as by a Service, the SLO is {'also met' if p.holds else 'missed'}."
        for p in by_chance
    ]
    if choice.pools:
        lines += [
            "Put a proxy that pairs prefill and decode servers in front of both Services, such as "
            f"{_PROXY}.",
            f"Disaggregated prefill/decode: {POOLS_UNSURE}.",
        ]
    return lines


def _probability(plan: Plan, choice: Choice) -> list[str]:
    """Return a sentence if a row does not show the requested probability of meeting the SLO."""
    gap = probability_gap(plan, choice)
    least = f"{100 * (plan.ask.min_probability or 0):g} %"
    return [f"Requested P(SLO met): at least {least}, but {gap}."] * bool(gap)


def length_limit(plan: Plan, choice: Choice) -> list[str]:
    """Return a sentence about a maximum request length that was derived from the load."""
    most = choice.flags.get("max_model_len")
    if not plan.ask.derives_length or most is None or choice.coefficients != NETWORK:
        return []
    return [
        f"Requests may have up to {most:,} tokens, from the load's longest request "
        f"({plan.ask.longest_tokens:,}); the engine refuses longer ones (change it with "
        "--max-model-len)."
    ]


def several_machines(plan: Plan, choice: Choice) -> list[str]:
    """Return a sentence on how to start a replica that spans several machines; else none."""
    sizes = choice.pool_sizes or ((choice.replicas, choice.gpus_per_replica),)
    machines = -(-max(gpus for _, gpus in sizes) // plan.ask.gpus_per_machine)
    if machines == 1:
        return []
    started = {
        VLLM: f"with --nnodes {machines} --node-rank RANK --master-addr ADDRESS, and --headless on "
        "all but the first",
        SGLANG: f"with --nnodes {machines} --node-rank RANK --dist-init-addr ADDRESS:PORT",
        TRTLLM: "by mpirun",
    }
    return [
        f"A server spans {machines} machines of {plan.ask.gpus_per_machine} GPUs: run the command "
        f"on each of them {started[choice.engine]}."
    ]


def _cost_and_chance(choice: Choice) -> str:
    cost = "" if choice.cost_per_hour is None else f", {choice.cost_per_hour:,.2f} per hour"
    return cost if choice.chance is None else f"{cost}, P(SLO met) {choice.stated_chance}"


def _servers(plan: Plan, choice: Choice) -> list[_Server]:
    """Return the servers of a row; with disaggregated P/D, the servers of both roles."""
    base = _name(plan.ask.model)
    release = served_release(choice.engine, str(choice.flags.get("engine_version") or ""))
    image = _IMAGES[choice.engine].format(release)
    per_machine = plan.ask.gpus_per_machine

    def server(name: str, line: str, count: int, gpus: int) -> _Server:
        words, machines = _words(choice.engine, line), -(-gpus // per_machine)
        kind = choice.engine, image, choice.gpu
        router = choice.router or ROUND_ROBIN if count > 1 else ""
        return _Server(name, words, *kind, gpus, machines, count, f"{base}-models", router)

    if choice.pool_sizes is None:
        return [server(base, choice.serve_command, choice.replicas, choice.gpus_per_replica)]
    lines = choice.serve_command.split("\n")
    roles = zip(("prefill", "decode"), lines, choice.pool_sizes, strict=True)
    return [server(f"{base}-{role}", line, count, gpus) for role, line, (count, gpus) in roles]


def _name(model: str) -> str:
    """Return a model's name as an RFC 1035 label, which begins with a letter, for a Service."""
    text = re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower())
    text = text[:_NAME_LENGTH].strip("-")
    return text if text[:1].isalpha() else f"model-{text}".strip("-")


def _words(engine: str, line: str) -> list[str]:
    """Return the arguments of a start command, with options to listen on all network interfaces."""
    if engine == TRTLLM:  # bash passes the options file through a pipe
        command = line.partition("  # ")[0].replace("trtllm-serve ", "exec trtllm-serve ", 1)
        return ["bash", "-c", f"{command} --host 0.0.0.0"]
    words = shlex.split(line, comments=True)
    return words if engine == VLLM else [*words, "--host", "0.0.0.0"]


def _objects(server: _Server) -> list[_Object]:
    if server.machines == 1:
        labels: _Object = {"app": server.name}
        deployment = _described("apps/v1", "Deployment", server.name, {
            "replicas": server.count,
            "selector": {"matchLabels": labels},
            # There may be no spare GPUs, so an old pod must stop before its successor starts.
            "strategy": {"type": "RollingUpdate",
                         "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": _pod(server, server.command, labels),
        })  # fmt: skip
        return [deployment, _service(server, labels), *_budgets(server, labels)]
    leader: _Object = {"app": server.name, "role": "leader"}
    group = _described("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", server.name, {
        "replicas": server.count,
        "leaderWorkerTemplate": {
            "size": server.machines,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": _pod(server, _ranked(server, is_leader=True), leader),
            "workerTemplate": _pod(
                server, _ranked(server, is_leader=False), {"app": server.name}, serves=False
            ),
        },
    })  # fmt: skip
    return [group, _service(server, leader)]


def _budgets(server: _Server, labels: _Object) -> list[_Object]:
    """Return a disruption budget that evicts one pod at a time, as a list; [] for one server."""
    if server.count == 1:
        return []
    spec: _Object = {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    return [_described("policy/v1", "PodDisruptionBudget", server.name, spec)]


def _files(servers: Sequence[_Server], choice: Choice) -> _Object:
    """Return the claim for a volume that stores the model's files for all pods."""
    several = sum(server.pods for server in servers) > 1
    size = math.ceil(_FILES_SHARE * choice.weights_gib)
    return _described("v1", "PersistentVolumeClaim", servers[0].claim, {
        "accessModes": ["ReadWriteMany" if several else "ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{size}Gi"}},
    })  # fmt: skip


def _ranked(server: _Server, *, is_leader: bool) -> list[str]:
    """Return the command of one machine of a multi-machine server, with Kubernetes variables.

    vLLM's workers run without an API server (``vllm/entrypoints/cli/serve.py: run_headless``).
    """
    nodes = ["--nnodes", str(server.machines), "--node-rank", "$(LWS_WORKER_INDEX)"]
    if server.engine == VLLM:
        words = [*server.command, *nodes, "--master-addr", "$(LWS_LEADER_ADDRESS)"]
        return words if is_leader else [*words, "--headless"]
    if server.engine == SGLANG:
        address = f"$(LWS_LEADER_ADDRESS):{_RENDEZVOUS_PORT}"
        return [*server.command, *nodes, "--dist-init-addr", address]
    raise PinnError(
        "trtllm-serve spans machines by mpirun, for which there is no manifest: limit --max-gpus "
        "to the GPUs of one machine, or --engine vllm,sglang"
    )


def _pod(server: _Server, command: list[str], labels: _Object, *, serves: bool = True) -> _Object:
    """Return the template of a pod: one machine of a server, with health probes and resources.

    Args:
        server: Server to which the machine belongs.
        command: Arguments of the command that the pod runs.
        labels: Labels of the pod.
        serves: Whether the pod serves HTTP requests, so that it can be probed.
    """
    per_pod = server.gpus // server.machines
    probe: _Object = {"httpGet": {"path": _HEALTH, "port": "http"}, "periodSeconds": _PROBE_S,
                      "timeoutSeconds": 5}  # fmt: skip
    container: _Object = {
        "name": "server",
        "image": server.image,
        "command": command,
        "env": _environment(server),
        # One CPU for each process: a worker per GPU, the engine core and the API server.
        "resources": {
            "requests": {"cpu": str(per_pod + 2)},
            "limits": {"nvidia.com/gpu": str(per_pod)},
        },
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "models", "mountPath": "/root/.cache/huggingface"},
        ],
    }
    if serves:
        container |= {
            "ports": [{"name": "http", "containerPort": _PORTS[server.engine]}],
            "startupProbe": {**probe, "failureThreshold": _START_PROBES},
            "readinessProbe": {**probe, "failureThreshold": _READY_PROBES},
            "livenessProbe": {**probe, "failureThreshold": _LIVE_PROBES},
        }
    pod: _Object = {
        "containers": [container],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "models", "persistentVolumeClaim": {"claimName": server.claim}},
        ],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    if server.count > 1 and server.machines == 1:
        pod["topologySpreadConstraints"] = [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
             "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": labels}}
        ]  # fmt: skip
    if product := _product(server.gpu):
        pod["nodeSelector"] = {"nvidia.com/gpu.product": product}
    return {"metadata": {"labels": labels}, "spec": pod}


def _environment(server: _Server) -> list[_Object]:
    secret = {"name": "hf-token", "key": "token", "optional": True}
    listed: list[_Object] = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]
    if "--kv-transfer-config" in server.command:
        # Prefill and decode servers connect to each other by their pod addresses.
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        listed.append({"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address})
    return listed


def _product(gpu: str) -> str | None:
    """Return the node label that NVIDIA's GPU feature discovery sets for a GPU; None if unknown."""
    with suppress(PinnError):  # a user's own datasheet is not in the catalog
        for alias in gpu_aliases(load_gpu(gpu)):
            if alias.startswith("NVIDIA "):
                return alias.replace(" ", "-")
    return None


def _service(server: _Server, selector: _Object) -> _Object:
    """Return the service of a server, annotated with the routing that the plan assumes."""
    spec: _Object = {
        "selector": selector,
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
    }
    annotations = {_ROUTER: server.router} if server.router else {}
    return _described("v1", "Service", server.name, spec, annotations)


def _described(
    version: str, kind: str, name: str, spec: _Object, annotations: Mapping[str, str] = _NONE
) -> _Object:
    metadata: _Object = {"name": name, "labels": {"app": name}}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
