"""A command's first screen states the assumptions of its prediction."""

import pytest

import pinn

LLAMA = ("--model", "Llama-3.1-8B", "--gpu", "H100")
LOAD = ("--input-len", "256", "--output-len", "8", "--concurrency", "2", "--num-prompts", "8")
RELEASES = {
    "0.15.1": "vllm 0.15.1, measured: trained on releases 0.10.2, 0.15.1 to 0.19.0",
    "0.19.0": "vllm 0.19.0, measured: trained on releases 0.10.2, 0.15.1 to 0.19.0",
    "0.33.0": "vllm 0.33.0, not measured: trained on releases 0.10.2, 0.15.1 to 0.19.0",
}
DRAFTS = ("--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}')
PLAN = ("--slo", "p95 ttft<=1s", "--input-len", "256", "--output-len", "8", "--rate", "4",
        "--duration", "20", "--workers", "1", "--tensor-parallel-size", "1", "--max-num-seqs",
        "64", "--max-num-batched-tokens", "2048", "--time-budget", "inf")  # fmt: skip
COMMANDS = {
    "coefficients": ("coefficients", *LLAMA),
    "breakdown": ("breakdown", *LLAMA, "--batch", "8 decode @ 700"),
    "simulate": ("simulate", *LLAMA, *LOAD),
    "plan": ("plan", *LLAMA, *PLAN),
}


def printed(run, *words):
    found = run(*words)
    assert found.exit_code == 0, found.output
    return " ".join(found.stdout.split())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("release", "line"), RELEASES.items())
def test_a_release_says_whose_measurements_it_rests_on(run, command, release, line):
    assert line in printed(run, *COMMANDS[command], "--engine-version", release)


@pytest.mark.usefixtures("run")
def test_releases_share_their_step_times():
    times = {
        pinn.predict("Llama-3.1-8B", "H100", engine_version=release).step_time("8 decode @ 700")
        for release in RELEASES
    }
    assert len(times) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_an_assumed_acceptance_is_said(run, command):
    said = printed(run, *COMMANDS[command], *DRAFTS)
    assert "1.58 tokens per request per step. ASSUMED acceptance 0.38 (0.38 to 0.8)" in said
    given = printed(run, *COMMANDS[command], *DRAFTS, "--speculative-acceptance", "0.7")
    assert "ASSUMED" not in given
    assert "2.53 tokens per request per step, at the acceptance given" in given


def test_a_simulation_asks_for_the_acceptance_of_n_grams(refused):
    drafts = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
    line = refused("simulate", *LLAMA, *LOAD, *drafts)
    assert "ngram drafts: give --speculative-acceptance, measured values are 0 to 1" in line
    assert "random prompts" in line
