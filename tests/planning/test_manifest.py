"""A plan's first choice as Kubernetes objects, checked against the schemas of Kubernetes."""

from __future__ import annotations

import dataclasses
import shlex

import pytest
import yaml
from finished_plans import choice, point
from finished_plans import plan as finished_plan

from pinn.errors import PinnError
from pinn.planning.manifest import manifest
from pinn.planning.plan import Fleet

VLLM = "vllm serve an-organisation/A_Model.1 --tensor-parallel-size 4 --max-num-seqs 256"
POOL = '{} --kv-transfer-config \'{{"kv_connector":"NixlConnector"}}\'  # {} of them, {}'


def plan_of(command=VLLM, gpus_each=4, replicas=3, model="an-organisation/A_Model.1", **more):
    """Return a plan with one choice."""
    whole = finished_plan()
    first = choice("H100-SXM", gpus_each, replicas, 4.4, 2.5)
    first = dataclasses.replace(first, serve_command=command, weights_gib=60.0, **more)
    return dataclasses.replace(
        whole, choices=[first], ask=dataclasses.replace(whole.ask, model=model)
    )


def objects(plan):
    found = list(yaml.safe_load_all(manifest(plan)))
    for each in found:
        check(each)
    return found


def check(found):
    """Validate against the schemas of Kubernetes; templates of a group as those of a Deployment."""
    validator = pytest.importorskip("kubernetes_validate", reason="the schemas are not installed")
    if found["kind"] != "LeaderWorkerSet":
        validator.validate(found, "1.34", strict=True)
        return
    templates = found["spec"]["leaderWorkerTemplate"]
    for name in ("leaderTemplate", "workerTemplate"):
        pod = templates[name]
        check({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
            "spec": {"selector": {"matchLabels": pod["metadata"]["labels"]}, "template": pod},
        })  # fmt: skip


def container(pod):
    (found,) = pod["spec"]["containers"]
    return found


def test_a_replica_on_one_machine_is_a_pod_of_a_deployment():
    plan = plan_of(f"{VLLM}  # with a checkpoint in fp8")
    deployment, service, budget, claim = objects(plan)
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    assert deployment["metadata"]["name"] == service["metadata"]["name"] == "a-model-1"
    assert deployment["spec"]["replicas"] == 3
    pod = deployment["spec"]["template"]
    server = container(pod)
    assert server["command"] == shlex.split(VLLM)
    assert server["image"].startswith("vllm/vllm-openai:v0.")
    assert server["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[name]["httpGet"] == {"path": "/health", "port": "http"}
    assert server["startupProbe"]["failureThreshold"] * 10 == 1800
    assert server["ports"] == [{"name": "http", "containerPort": 8000}]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] == "http"
    assert "&id" not in manifest(plan)
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert budget["spec"]["maxUnavailable"] == 1
    (models,) = (each for each in pod["spec"]["volumes"] if each["name"] == "models")
    assert models["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "90Gi"  # 1.5 x 60 GiB
    assert "# 3 x H100-SXM TP 4 bf16 <8192 tokens>, 30.00 per hour, P(SLO met) 97 %" in manifest(
        plan
    )
    routing = plan.choices[0].router
    assert routing
    assert f"# The plan assumes {routing} routing (--router of pinn simulate)." in manifest(plan)
    assert service["metadata"]["annotations"] == {"pinn/router": routing}


def test_one_pod_has_a_volume_of_its_own_and_no_budget():
    deployment, _, claim = objects(plan_of(replicas=1))
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert "topologySpreadConstraints" not in deployment["spec"]["template"]["spec"]


@pytest.mark.parametrize(("holds", "said"), [(True, "is also met"), (False, "is missed")])
def test_what_a_service_alone_would_do_is_said(holds, said):
    whole = plan_of()
    fleets = [Fleet("random", point(12.0, 12, holds)), *whole.choices[0].fleets]
    first = dataclasses.replace(whole.choices[0], fleets=fleets)
    text = manifest(dataclasses.replace(whole, choices=[first]))
    assert f"# With random routing, as by a Service, the SLO {said}." in text


def test_sglang_listens_for_the_service():
    command = "python -m sglang.launch_server --model-path a/b --tp-size 4"
    deployment, *_ = objects(plan_of(command, engine="sglang"))
    server = container(deployment["spec"]["template"])
    assert server["command"] == [*shlex.split(command), "--host", "0.0.0.0"]
    assert server["image"].startswith("lmsysorg/sglang:v0.5.")
    assert server["ports"][0]["containerPort"] == 30000


def test_tensorrt_llm_gets_its_options_from_a_pipe():
    command = "trtllm-serve a/b --tp_size 4 --extra_llm_api_options <(echo '{\"a\":1}')  # note"
    deployment, *_ = objects(plan_of(command, engine="trtllm"))
    shell, flag, line = container(deployment["spec"]["template"])["command"]
    assert (shell, flag) == ("bash", "-c")
    assert line == f"exec {command.partition('  #')[0]} --host 0.0.0.0"


@pytest.mark.parametrize(
    ("engine", "command", "leads", "follows"),
    [
        ("vllm", VLLM, ["--master-addr", "$(LWS_LEADER_ADDRESS)"], ["--headless"]),
        (
            "sglang",
            "python -m sglang.launch_server --model-path a/b",
            ["--dist-init-addr", "$(LWS_LEADER_ADDRESS):20000"],
            [],
        ),
    ],
)
def test_a_replica_across_machines_is_a_group(engine, command, leads, follows):
    group, service, *_ = objects(plan_of(command, gpus_each=16, replicas=2, engine=engine))
    assert group["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    assert group["spec"]["replicas"] == 2
    template = group["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    leader, worker = (container(template[f"{name}Template"]) for name in ("leader", "worker"))
    ranks = ["--nnodes", "2", "--node-rank", "$(LWS_WORKER_INDEX)", *leads]
    assert leader["command"][-len(ranks) :] == ranks
    assert worker["command"][-len(ranks + follows) :] == ranks + follows
    assert leader["resources"]["limits"] == worker["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert "readinessProbe" in leader
    assert "readinessProbe" not in worker
    assert service["spec"]["selector"] == template["leaderTemplate"]["metadata"]["labels"]
    assert service["spec"]["selector"] != template["workerTemplate"]["metadata"]["labels"]


def test_tensorrt_llm_across_machines_is_refused():
    with pytest.raises(PinnError, match="mpirun"):
        manifest(plan_of("trtllm-serve a/b", gpus_each=16, engine="trtllm"))


def test_pools_are_servers_of_either_role():
    lines = "\n".join(POOL.format(VLLM, *each) for each in ((2, "prefill"), (1, "decode")))
    plan = plan_of(lines, pools=("2x tp=2", "1x tp=4"), pool_sizes=((4, 2), (2, 4)))
    found = {each["metadata"]["name"]: each for each in objects(plan) if "template" in each["spec"]}
    counts = {name: each["spec"]["replicas"] for name, each in found.items()}
    assert counts == {"a-model-1-prefill": 4, "a-model-1-decode": 2}
    for name, gpus in (("a-model-1-prefill", "2"), ("a-model-1-decode", "4")):
        server = container(found[name]["spec"]["template"])
        assert server["resources"]["limits"] == {"nvidia.com/gpu": gpus}
        assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in [each["name"] for each in server["env"]]
        assert "--kv-transfer-config" in server["command"]


def test_the_users_own_datasheet_has_no_label():
    deployment, *_ = objects(plan_of(gpu="my-card"))
    assert "nodeSelector" not in deployment["spec"]["template"]["spec"]


def test_any_row_can_be_deployed_and_the_text_says_which():
    whole = finished_plan()
    whole = dataclasses.replace(
        whole, choices=[dataclasses.replace(each, serve_command=VLLM) for each in whole.choices]
    )
    for row, text in ((1, "row 1 (recommended)"), (3, "row 3 (not the recommended row)")):
        choice = whole.choices[row - 1]
        found = manifest(whole, row)
        deployment, *_ = yaml.safe_load_all(found)
        assert deployment["spec"]["replicas"] == choice.replicas
        state = f"{text}, {choice.replicas} x {choice.label}; the plan is complete."
        assert f"# Manifest: {state}\n" in found
    for row in (0, 4):
        with pytest.raises(PinnError, match=rf"the plan has no row {row}: .* 1 to 3"):
            manifest(whole, row)


def test_the_manifest_of_an_incomplete_plan_says_that_it_is_provisional():
    whole = dataclasses.replace(plan_of(), stopped="time budget", untried=2, left_s=60.0)
    text = manifest(whole)
    assert "; the plan is provisional.\n" in text
    assert "# The time budget (--time-budget) was used up: 2 of 84 candidates were not" in text
    assert "provisional" not in manifest(plan_of())
