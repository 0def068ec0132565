"""Exported folders checked by BLIS's rules: flags, look-ups, refusals, KV blocks, step time."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blis_engine.config import RefusedError, check, kv_blocks, read_inputs, read_model
from blis_engine.flags import flags_of, parse
from blis_engine.formula import formula
from blis_engine.specification import read_specification

from pinn.common.files import find_checkpoint
from pinn.engines.configurations import make_deployment, make_deployments, read_configurations
from pinn.engines.engine_spec import EngineSpec
from pinn.export.blis_batches import Lengths
from pinn.export.blis_features import (
    BASIS,
    BlisSums,
    Projection,
    Timed,
    blis_features,
    blis_step_us,
)
from pinn.export.blis_files import folder_name, write_configuration
from pinn.export.blis_model import (
    blis_config,
    blis_flags,
    blis_gpu_name,
    blis_kv_blocks,
    blis_model,
)
from pinn.export.blis_vectors import MIX, BlisVector, WorstBatch
from pinn.export.configured import from_checkpoint
from pinn.memory.kv_cache import kv_layout
from pinn.specs.gpu import load_gpu
from pinn.specs.model import mixer_names

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "export" / "blis" / "configurations.csv"
LENGTH = 800


def vector(load: str, decodes: float = 30.0, prompt: int = 512, worst: float = 0.1) -> BlisVector:
    """Return coefficients whose terms are distinct in a step time; alpha identifies them."""
    beta = np.linspace(0.3, 1.3, len(BASIS))
    projection = Projection(beta, (), np.zeros(1))
    none, no_batches = {load: 0.0}, Timed(np.zeros((0, len(BASIS))), np.zeros(0))
    return BlisVector(
        load, no_batches, 1e4, Lengths(prompt, 256), decodes, 0.0, 0.0, 1, 50 * decodes, False, 0.0,
        (9e3 + decodes + prompt, 500.0, 0.0), projection, (1.0, 128.0),
        {"decodes alone": WorstBatch(worst, 7, 0, 0)}, 20.0, 5.0, 1, none, none,
    )  # fmt: skip


#: Steady loads with two prompt lengths.
STEADY = [
    vector(f"decodes-{n:.0f}-prompts-{p}", n, p) for p in (500, 1000) for n in (1.0, 10.0, 100.0)
]


@pytest.fixture(scope="module")
def exported():
    """Return the configurations on which the project is evaluated."""
    kept, deployments, _ = make_deployments(read_configurations(CONFIGURATIONS))
    return from_checkpoint(find_checkpoint(), kept, deployments)


@pytest.fixture(scope="module")
def folders(exported, tmp_path_factory):
    out = tmp_path_factory.mktemp("blis")
    for row, deployment in enumerate(exported.deployments):
        blocks = blis_kv_blocks(deployment, LENGTH)
        write_configuration(exported, row, [*STEADY, vector("mix")], blocks, out)
    return [out / folder_name(exported, row) for row in range(len(exported))]


def test_the_configurations_are_of_every_kind(exported):
    deployments = exported.deployments
    assert len(deployments) == 30
    assert len({d.gpu.name for d in deployments}) == 5
    assert {d.serving.tensor_parallel_size for d in deployments} == {1, 2, 4, 8}
    each = [(d.model.moe, d.model.precisions) for d in deployments]
    formats = {(p.experts if moe else p.dense_ffn).name for moe, p in each}
    assert {"bf16", "fp8", "int4_wo", "mxfp4", "fp8_block"} <= formats
    assert any("latent" in mixer_names(d.model) for d in deployments)


def test_every_folder_passes_the_rules(exported, folders):
    for deployment, folder in zip(exported.deployments, folders, strict=True):
        spec = str(folder / "load.yaml")
        Path(spec).write_text(BLOCKS.format(rate=2, kind="constant", params="value: 500"))
        inputs = read_inputs(flags_of(folder / "run.sh", "--workload-spec", spec))
        flags, m = inputs.flags, blis_model(deployment)
        # No rule is skipped because the number of blocks is given.
        check(inputs.model, flags.tp, flags.dp, blocks_given=False)
        assert inputs.model.weight_bytes == m.weight_bytes
        assert flags.workload_spec == spec
        assert (flags.tp, flags.max_num_seqs, flags.max_model_len) == (
            deployment.serving.tensor_parallel_size, 128, 4096,
        )  # fmt: skip
        assert flags.max_num_batched_tokens == deployment.recipe.token_budget
        assert (
            inputs.hardware
            == json.loads((folder / "hardware.json").read_text())[deployment.gpu.name]
        )


def test_blocks_are_those_of_the_simulator_and_not_those_that_blis_works_out(exported, folders):
    off = []
    for deployment, folder in zip(exported.deployments, folders, strict=True):
        flags = flags_of(folder / "run.sh")
        layout = kv_layout(deployment, EngineSpec())
        if layout.window_groups:
            # Equally many requests of that length fit.
            held = layout.request_blocks(LENGTH, 16)
            assert flags.total_kv_blocks // 50 == pytest.approx(layout.blocks // held, abs=1)
        else:
            assert flags.total_kv_blocks == layout.blocks
        inputs = read_inputs(flags)
        try:
            own = kv_blocks(inputs.model, inputs.hardware["MemoryGiB"], flags)
        except RefusedError:
            continue
        off.append((flags.tp, own / layout.blocks))
    assert np.median([ratio for tp, ratio in off if tp > 1]) > 1.5
    assert min(ratio for _, ratio in off) < 0.7


def test_the_stand_in_counts_blocks_as_documented():
    deployment = make_deployment({"model": "meta-llama/Llama-3.1-8B", "gpu": "H100"})
    model = read_model(blis_config(deployment), "x")
    found = []
    for tp in (1, 2, 4):
        serving = replace(deployment.serving, tensor_parallel_size=tp)
        flags = blis_flags(replace(deployment, serving=serving), 1)
        parsed = parse(["run", *(text for k, v in flags.items() for text in (f"--{k}", v))])
        found.append(kv_blocks(model, 80, parsed))
    assert found == [26312, 125278, 543011]


def test_step_times_of_the_folder_are_those_of_its_vector(exported, folders):
    """BLIS's formula, written twice, gives equal times on mixed batches."""
    rng = np.random.default_rng(0)
    beta = vector("mix").projection.beta
    for deployment, folder in zip(exported.deployments, folders, strict=True):
        step = formula(read_inputs(flags_of(folder / "run.sh")))
        for _ in range(5):
            prompts = rng.integers(20, 3000, 20).tolist()
            batch = [(p + i, 1, p) for i, p in enumerate(prompts[:15])]
            batch += [(0, max(p // 2, 1), p) for p in prompts[15:]]
            prefills = [(new, p) for at, new, p in batch if at < p]
            decodes = [at for at, _, p in batch if at >= p]
            sums = BlisSums(
                *(
                    np.array([float(x)])
                    for x in (
                        sum(new for new, _ in prefills), len(decodes), sum(decodes), len(batch),
                        sum(new * (p + new / 2) for new, p in prefills),
                    )
                )
            )  # fmt: skip
            wanted = blis_step_us(blis_features(blis_model(deployment), sums), beta)[0]
            assert step.step_us(batch) == pytest.approx(wanted, abs=1)


def test_a_folder_runs_wherever_it_lies(folders, tmp_path):
    moved = tmp_path / "a folder" / "elsewhere"
    shutil.copytree(folders[0], moved)
    inputs = read_inputs(flags_of(moved / "run.sh"))
    assert inputs.flags.model_config_folder == str(moved)
    assert inputs.alpha == list(vector("mix").alpha)


@pytest.fixture
def script(exported, tmp_path):
    """Return a run.sh with steady loads, one load of the user and one that was too much."""
    lost = replace(vector("flood"), overloaded=True)
    vectors = [*STEADY, vector("chat", 44), lost, vector(MIX)]
    write_configuration(exported, 0, vectors, 1000, tmp_path)
    return tmp_path / folder_name(exported, 0) / "run.sh"


def arrival_us(script, text):
    """Return the first alpha that run.sh picks for a specification."""
    spec = script.with_name("load.yaml")
    spec.write_text(text)
    return read_inputs(flags_of(script, "--workload-spec", str(spec))).alpha[0]


BLOCKS = """
num_requests: 100
aggregate_rate: {rate}   # requests per second
clients:
  - id: "all"
    rate_fraction: 1.0
    arrival:
      process: poisson
    input_distribution:
      type: {kind}
      params:
        {params}
    output_distribution:
      type: constant
      params:
        value: 100
"""


def test_a_load_has_coefficients_of_its_own(script):
    for name, decodes, prompt in (("chat", 44, 512), ("decodes-10-prompts-500", 10, 500)):
        assert read_inputs(flags_of(script, load=name)).alpha[0] == 9000 + decodes + prompt
    assert read_inputs(flags_of(script, load="mix")).alpha == list(vector("mix").alpha)


def test_a_specification_takes_the_loads_that_lie_around_it(script):
    def of(rate, kind="constant", params="value: 500"):
        return arrival_us(script, BLOCKS.format(rate=rate, kind=kind, params=params))

    # With 100 output tokens a request; prompts of 500 take 10 ms of a second each.
    busy = 1 - 500 * 20e-6 * 5 / (1 + 500 * 20e-6 * 5)
    assert of(5 * busy) == pytest.approx(9000 + 10 + 500, abs=0.01)
    assert of(0.01) == 9000 + 1 + 500
    assert of(90) == 9000 + 100 + 500
    assert 9000 + 10 + 500 < of(15) < 9000 + 100 + 500
    # In proportion to a prompt's first-token cost per token.
    between = of(0.01, "gaussian", "mean: 750\n        std_dev: 9")
    weight = (1 / 750 - 1 / 1000) / (1 / 500 - 1 / 1000)
    assert between == pytest.approx(9001 + weight * 500 + (1 - weight) * 1000, abs=0.01)
    longer = of(0.01, "lognormal", f"mu: {np.log(1200)}\n        sigma: 0")
    assert longer == 9000 + 1 + 1000
    assert of(0.01, "empirical", '"400": 0.5\n        "600": 0.5') == 9000 + 1 + 500


def test_every_kind_of_specification_is_read(script):
    flow = (
        "num_requests: 9\nclients: [{concurrency: 10, "
        "input_distribution: {type: constant, params: {value: 500}}, "
        "output_distribution: {type: exponential, params: {mean: 90}}}]"
    )
    items = flow.replace("[{concurrency", "\n- {concurrency").removesuffix("]")
    assert arrival_us(script, items) == 9000 + 10 + 500
    stages = """
num_requests: 10
inference_perf:
  stages:
  - rate: 0.001
    duration: 100
  - {rate: 0.01, duration: 100}
  shared_prefix: {num_unique_system_prompts: 2, system_prompt_len: 300, question_len: 500,
                  output_len: 100}
"""
    # The system prompt's 300 tokens are before the queue, though not among those computed.
    assert arrival_us(script, stages) == 9000 + 1 + 500 + 5 * 300


def picked_us(script, *arguments):
    """Return the first alpha that run.sh picks for flags."""
    return read_inputs(flags_of(script, *arguments)).alpha[0]


def test_servers_share_a_load(script):
    """Each of 1, 4 and 16 servers takes the coefficients of what it sees itself."""
    one = [arrival_us(script, BLOCKS.format(rate=r, kind="constant", params="value: 500"))
           for r in (20, 5, 1.25)]  # fmt: skip
    spec = script.with_name("load.yaml")
    spec.write_text(BLOCKS.format(rate=20, kind="constant", params="value: 500"))
    for servers, wanted in zip((1, 4, 16), one, strict=True):
        for flag in ([f"--num-instances={servers}"], ["--num-instances", f"{servers}"]):
            got = picked_us(script, *flag, "--workload-spec", str(spec))
            assert got == pytest.approx(wanted, abs=1e-6)
    assert one[0] > one[1] + 1 > one[2] + 2


def test_loads_of_flags_and_of_names_are_read(script):
    spec = BLOCKS.format(rate=5, kind="constant", params="value: 500")
    wanted = arrival_us(script, spec)
    flags = ("--prompt-tokens", "500", "--output-tokens=100")
    assert picked_us(script, "--rate", "5", *flags) == wanted
    assert picked_us(script, "--workload", "distribution", "--rate=5", *flags) == wanted
    assert picked_us(script, "--rate", "20", "--num-instances", "4", *flags) == wanted
    assert picked_us(script, "--concurrency", "10", *flags) == 9000 + 10 + 500
    defaults = (
        "workloads:\n  other:\n    prompt_tokens: 1000\n    output_tokens: 7\n"
        "  chatbot:\n    prefix_tokens: {prefix}\n    prompt_tokens: 500\n"
        "    prompt_tokens_stdev: 90\n    output_tokens: 100\n  last:\n    prompt_tokens: 9\n"
    )
    path = script.with_name("defaults.yaml")
    for prefix in (0, 40):
        path.write_text(defaults.format(prefix=prefix))
        done = subprocess.run(
            [str(script), "--workload", "chatbot", "--rate", "5"],
            env={"PATH": "/usr/bin:/bin", "BLIS": "echo"}, cwd=script.parent, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        arrival = float(done.stdout.split("--alpha-coeffs ")[1].split(",")[0])
        assert arrival == pytest.approx(wanted + 5 * prefix, abs=1e-4)
        assert "requests/s of 500 + 100 tokens" in done.stderr


def test_routers_of_one_server_need_no_signals(script):
    assert flags_of(script, load="mix").cache_signal_delay == 0
    assert flags_of(script, "--num-instances", "4", load="mix").cache_signal_delay == 50_000
    assert flags_of(script, "--cache-signal-delay", "7", load="mix").cache_signal_delay == 7


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("rate_fraction", "share"), "unknown keys"),
        (("rate_fraction: 1.0", "id: all"), "rate_fraction must be positive"),
        (("process: poisson", "cv: 1.0"), "unknown arrival process None"),
        (("type: constant", "type: normal"), "unknown distribution"),
        (("value: 500", "mean: 500"), "constant needs"),
        (("num_requests: 100", "seed: 1"), "horizon or num_requests"),
    ],
)
def test_the_stand_in_refuses_specifications_as_documented(tmp_path, change, reason):
    path, text = tmp_path / "load.yaml", BLOCKS.format(rate=2, kind="constant", params="value: 500")
    path.write_text(text)
    assert read_specification(path)["aggregate_rate"] == 2
    path.write_text(text.replace(*change))
    with pytest.raises(RefusedError, match=reason):
        read_specification(path)


@pytest.mark.parametrize(
    "text",
    [
        "cohorts: []\n" + BLOCKS,
        BLOCKS.replace("rate_fraction", "lifecycle: []\n    rate_fraction"),
        "num_requests: 3\ncohorts: [id: a]\n",
        BLOCKS.replace("{kind}", "pareto_lognormal").replace(
            "{params}", "{{alpha: 2, xm: 90, mu: 5, sigma: 1, mix_weight: 0.5}}"
        ),
    ],
)
def test_what_says_no_load_takes_all_of_them_or_asks(script, exported, tmp_path, text):
    spec = text.format(rate=5, kind="constant", params="value: 500")
    assert arrival_us(script, spec) == vector(MIX).alpha[0]
    write_configuration(exported, 0, [*STEADY, vector(MIX, worst=-0.4)], 1000, tmp_path)
    said = complaint(script, "--workload-spec", str(script.with_name("load.yaml")))
    assert "errors of up to 40 %" in said
    assert "set LOAD to decodes-1-prompts-500 to decodes-100-prompts-1000 (loads.csv), mix" in said


def complaint(script, *arguments, **variables):
    """Return the error message with which run.sh ends."""
    done = subprocess.run(
        [str(script), *arguments], env={"PATH": "/usr/bin:/bin", "BLIS": "echo"} | variables,
        cwd=script.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout
    return done.stderr


def test_slips_are_told_with_what_there_is(script):
    for slip in ("chatt", "load", "decodes-1"):
        assert (
            f"no LOAD={slip}: use decodes-1-prompts-500 to decodes-100-prompts-1000 (loads.csv), "
            "chat, mix" in complaint(script, LOAD=slip)
        )
    assert "cannot keep up with flood" in complaint(script, LOAD="flood")
    assert "no effect beside --total-kv-blocks 1000" in complaint(
        script, "--gpu-memory-utilization", "0.8"
    )
    assert "x.yaml cannot be read" in complaint(script, "--workload-spec", "x.yaml")
    assert "set BLIS_DEFAULTS" in complaint(script, "--workload", "chatbot")


def test_blis_looks_its_own_loads_up_in_its_own_file(script):
    script.with_name("defaults.yaml").write_text("workloads:\n  chatbot: {}\n")
    done = subprocess.run(
        [str(script), "--workload", "chatbot"], env={"PATH": "/usr/bin:/bin", "BLIS": "echo"},
        cwd=script.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--defaults-filepath defaults.yaml --alpha-coeffs 9542,500,0 --beta" in done.stdout


def test_bytes_per_weight_are_ours_whatever_the_name_says():
    source = {"model": "nvidia/Llama-3.1-8B-Instruct-FP8", "gpu": "H100", "precision": "bf16"}
    deployment = make_deployment(source)
    assert read_model(blis_config(deployment), deployment.model.name).weight_bytes == 2
    plain = make_deployment(source | {"model": "meta-llama/Llama-3.1-8B"})
    assert "quantization_config" not in blis_config(plain)


def test_what_blis_reads_of_the_weights_hardly_changes_a_step(folders):
    """The published config.json of an fp8 deployment may be that of the bf16 model."""
    inputs = read_inputs(flags_of(folders[0] / "run.sh"))
    vectors = np.zeros(len(BASIS))
    vectors[[5, 6, 8, 9]] = 20.0, 5000.0, 1.0, 1.5
    batch = [(700 + i, 1, 547) for i in range(32)]
    times = {
        formula(
            replace(inputs, beta=vectors, model=replace(inputs.model, weight_bytes=each))
        ).step_us(batch)
        for each in (0.5, 1.0, 2.0)
    }
    assert len(times) == 1


def test_gpus_have_the_names_that_users_of_blis_type():
    names = {"H100": "H100", "A100-SXM": "A100-SXM", "A100-80": "A100-SXM", "L40S": "L40S"}
    assert {name: blis_gpu_name(load_gpu(name)) for name in names} == names
    assert blis_gpu_name(load_gpu("B200")) == "B200-SXM"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"torch_dtype": None, "quantization_config": None}, "BytesPerParam"),
        ({"num_key_value_heads": 4}, "must be divisible by TP"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_act": "gelu"}, "unsupported activation"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
    ],
)
def test_the_stand_in_refuses_as_documented(change, reason):
    deployment = make_deployment(
        {"model": "Qwen/Qwen3-235B-A22B", "gpu": "H200", "tensor_parallel_size": 8}
    )
    config = blis_config(deployment)
    check(read_model(config, "x"), 8, 1, blocks_given=False)
    with pytest.raises(RefusedError, match=reason):
        check(read_model(config | change, "x"), 8, 1, blocks_given=False)
