"""Numbers for people: no exponents below 10^9, nothing cut, nothing that says no more."""

import json
import re

import pytest

from pinn.common.numbers import exact, number
from pinn.common.screen import Column, Grid, page
from pinn.planning.commands import vllm_words

LLAMA = ("--model", "Llama-3.1-8B", "--gpu", "H100")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1230.0, "1,230"), (31_000, "31,000"), (1543.21, "1,540"), (0.0004567, "0.000457"),
     (20.0, "20.0"), (999.6, "1,000"), (-0.125, "-0.125"), (float("nan"), "-"), (None, "-"),
     (999_499_999.0, "999,000,000"), (1e9, "1.00e+09")],
)  # fmt: skip
def test_three_significant_digits_with_thousands_apart(value, shown):
    assert number(value) == shown


def test_what_was_typed_is_shown_as_typed():
    assert [exact(each) for each in (20.0, 1.5, 600.0)] == ["20", "1.5", "600"]
    words = vllm_words({"kv_cache_memory_bytes": 2e10, "gpu_memory_utilization": 0.5})
    assert {"20000000000", "0.5"} == {word for word in words if word[0] != "-"}


def test_a_narrow_terminal_cuts_no_number(capsys):
    table = Grid.of(Column("name", True), "A", "B")
    table.add("a name of many words " * 8, "123,456,789", "0.000457")
    page(30).print(table)
    printed = capsys.readouterr().out
    assert "123,456,789" in printed
    assert "0.000457" in printed
    assert "…" not in printed


def test_a_long_batch_leaves_the_other_columns(run):
    long = " + ".join(f"{n} decode @ {1000 * n}" for n in range(1, 9))
    found = run("coefficients", *LLAMA, "--batch", long, "--batch", "8 decode @ 700")
    assert found.exit_code == 0, found.output
    assert "…" not in found.stdout
    (last,) = (line for line in found.stdout.splitlines() if line.startswith("8 decode @ 700"))
    assert re.search(r"8 decode @ 700 +[\d.]+ +[\d,]+$", last)
    assert max(map(len, found.stdout.splitlines())) <= 80


def test_a_comparison_has_microseconds_and_no_exponents(run, tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    run("coefficients", *LLAMA, "--json", paths[0])
    tree = json.loads(paths[0].read_text())
    for entry in tree["beta"].values():
        entry["value"] *= 1.5432
    paths[1].write_text(json.dumps(tree))
    for more in ((), ("--details",)):
        printed = run("compare", *paths, *more).stdout
        assert "…" not in printed
        assert not re.search(r"\de[-+]\d", printed)
    step = 1e6 * tree["beta"]["step"]["value"]
    row = next(line.split() for line in printed.splitlines() if line.startswith("beta.step "))
    assert row[1:5] == ["us", number(step / 1.5432), number(step), "1.54"]


def test_measurements_are_a_table_and_markdown_where_asked(run):
    printed, markdown = (
        run("results", "--measured", *more).stdout for more in ((), ("--markdown",))
    )
    assert "|" not in printed
    assert max(map(len, printed.splitlines())) <= 100
    assert re.search(r"^vllm +all +838 ", printed, re.MULTILINE)
    assert markdown.startswith("| engine | release |")


def test_one_output_token_prints_no_nan(run):
    load = ("--input-len", 512, "--output-len", 1, "--num-prompts", 20, "--concurrency", 4)
    pools = ("--prefill", "1x tp=1", "--decode", "1x tp=1")
    for more in ((), pools):
        found = run("simulate", *LLAMA, *load, *more)
        assert found.exit_code == 0, found.output
        assert not re.search(r"\bnan\b", found.stdout.lower())


def test_a_plan_has_no_exponents_and_types_the_rate_as_given(run, tmp_path):
    grid = tmp_path / "grid.yaml"
    grid.write_text("gpus_per_machine: 8\ngrid: {tensor_parallel_size: [1], max_num_seqs: [64]}\n")
    load = ("--input-len", 256, "--output-len", 16, "--duration", 50, "--rate", 20)
    found = run("plan", *LLAMA, *load, "--slo", "p95 ttft<=1s", "--candidates", grid,
                "--price", "H100=1234.5", "--workers", 1, "--time-budget", "inf",
                "--out", tmp_path / "plan")  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "--duration 50" in found.stdout
    assert re.search(r"--rate 20$", found.stdout, re.MULTILINE)
    assert "1,234.50" in found.stdout
    page_text = (tmp_path / "plan" / "plan.html").read_text()
    body = re.sub(r"<(style|script).*?</\1>|src=\"[^\"]*\"", "", page_text, flags=re.DOTALL)
    for text in (found.stdout, body):
        assert not re.search(r"\b\d[\d.]*e[-+]\d", text)
