"""Page, terminal and CSV show equal latencies: those of clients of the whole fleet."""

import csv
import html
import re
from dataclasses import replace

import pytest
from finished_plans import plan, point

from pinn.planning.manifest import manifest
from pinn.planning.page import write_page
from pinn.planning.plan import TIME_BUDGET, Fleet, HighestRate
from pinn.planning.plan_files import choice_rows, write_files
from pinn.planning.report import print_plan


@pytest.fixture
def uneven():
    """Return a plan: the plan's router lets twice as long wait as chance does, and costs vary."""
    made = plan()
    fleets = [
        Fleet("random", point(12.0, 8)),
        Fleet("least-requests", point(12.0, 8, True, 2.0)),
    ]
    costs = (2.0, 2.574, 0.0417)
    choices = [
        replace(choice, fleets=fleets, cost_per_million_output_tokens=cost)
        for choice, cost in zip(made.choices, costs, strict=True)
    ]
    return replace(made, choices=choices)


def test_a_probability_is_never_stated_as_certain():
    first = plan().choices[0]
    stated = [replace(first, chance=chance).stated_chance for chance in (1.0, 0.975, 0.97, None)]
    assert stated == [">97 %", ">97 %", "97 %", "-"]
    made = plan()
    certain = replace(made, choices=[replace(first, chance=1.0), *made.choices[1:]])
    assert ", P(SLO met) >97 %\n" in manifest(certain)


def test_a_plan_that_was_ended_is_recommended_so_far(capsys):
    """Rows whose evaluation was ended make a plan provisional, even if all was tried."""
    print_plan(replace(plan(), stopped=TIME_BUDGET, untried=0, left_s=20.0), None)
    printed = " ".join(capsys.readouterr().out.split())
    assert "about 20 s or more are needed" in printed
    assert "Recommended so far:" in printed


def test_the_page_has_the_warnings_of_the_terminal(tmp_path, capsys):
    made = plan()
    ask = replace(made.ask, derives_length=True, unmeasured_gpus=["L40S"], suggests_fp8=True)
    first = replace(
        made.choices[0],
        flags={"max_model_len": 3072},
        assumptions=["vllm 0.33.0, not measured: trained on releases 0.15.1"],
    )
    shown = replace(made, ask=ask, choices=[first, *made.choices[1:]])
    print_plan(shown, None)
    printed = " ".join(capsys.readouterr().out.split())
    page = write_page(shown, tmp_path).read_text(encoding="utf-8")
    for text in (printed, html.unescape(page)):
        assert (
            "Requests may have up to 3,072 tokens, from the load's longest request (1,280)" in text
        )
        assert "vllm 0.33.0, not measured: trained on releases 0.15.1" in text
        assert "No serving data of L40S: no server was measured there" in text
    assert "--quantization bf16,fp8 also tries fp8" in printed
    assert "1,280 at most together" in page


def test_clients_see_the_fleet_in_turn_or_a_lone_replica(uneven):
    first = uneven.choices[0]
    assert first.seen == first.fleets[1].point
    assert replace(first, fleets=()).seen == first.at_rate


def test_page_terminal_and_csv_show_what_clients_see(uneven, tmp_path, capsys):
    write_files(uneven, tmp_path)
    print_plan(uneven, None)
    median_ms = 2 * 0.95 * 150
    with (tmp_path / "plan.csv").open() as file:
        assert {float(row["ttft_p50_s"]) for row in csv.DictReader(file)} == {median_ms / 1000}
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert page.count(f"{median_ms:.0f} ms") >= len(uneven.choices)
    printed = capsys.readouterr().out
    assert len(re.findall(r" 30 s +99\.0 % ", printed)) == len(uneven.choices)
    assert len(re.findall(r"\bmet +met\b", printed)) == len(uneven.choices)
    assert page.replace("\u00a0", " ").replace("&nbsp;", " ").count("99.0 % ✓") >= len(
        uneven.choices
    )


def test_costs_have_the_same_digits(uneven, tmp_path, capsys):
    """The terminal has costs per hour, the page per million tokens too, the CSV all digits."""
    print_plan(uneven, None)
    costs = re.findall(r"^ +\d+ +\d+ +([\d.]+) \d+ x ", capsys.readouterr().out, re.MULTILINE)
    assert costs == ["38.40", "40.00", "79.20"]
    write_files(uneven, tmp_path)
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert all(re.search(rf">\s*{cost}\s*<", page) for cost in ("2.00", "2.57", "0.0417"))
    with (tmp_path / "plan.csv").open() as file:
        each = [float(row["cost_per_million_output_tokens"]) for row in csv.DictReader(file)]
    assert each == [2.0, 2.574, 0.0417]


def test_a_load_that_is_over_before_a_server_is_full_is_named(uneven, tmp_path, capsys):
    said = "the load lasts 83.3 s, less than 10 times its mean E2E latency"
    for made, is_burst in ((uneven, True), (plan(), False)):
        print_plan(made, None)
        assert (said in capsys.readouterr().out) == is_burst
        page = write_page(made, tmp_path).read_text(encoding="utf-8")
        assert (said in page) == is_burst


def test_only_limits_on_each_request_are_said_to_be_met_by_each(uneven, capsys):
    served = "99.0 % of all requests are served"
    print_plan(replace(uneven, ask=replace(uneven.ask, slo="mean e2e<=20s")), None)
    assert " ".join(capsys.readouterr().out.split()).count(served) == 2  # behind either router
    print_plan(uneven, None)
    said = " ".join(capsys.readouterr().out.split())
    assert served not in said
    assert "(Kubernetes Service): p99 E2E 15 s, 99.0 % of requests within limits" in said
    assert "with the fewest" not in said  # it meets all: the table has its values


def test_a_rate_that_memory_limits_is_told_with_the_memory_of_a_gpu(capsys):
    shown = plan()
    print_plan(shown, None)
    assert "KV memory limits" not in capsys.readouterr().out
    memory = {"weights": 30.5, "kv_cache": 96.6, "kv_cache_low": 93.1, "kv_cache_high": 100.0}
    first, *others = shown.choices
    print_plan(replace(shown, choices=[replace(first, memory=memory), *others]), None)
    printed = capsys.readouterr().out
    assert "96.6 GiB per GPU (93.1 to 100.0)" in printed
    assert "30.5 GiB of" in printed


def test_a_missed_limit_is_named_and_what_fails_first(capsys):
    shown = plan()
    first, *others = shown.choices
    late = replace(first.seen.limits[0], met=False, seconds=31.0, excess=31 / 30)
    seen = replace(first.seen, holds=False, limits=[late, first.seen.limits[1]])
    fleets = [replace(first.fleets[0], point=seen)]
    print_plan(replace(shown, choices=[replace(first, fleets=fleets), *others]), None)
    printed = capsys.readouterr().out
    assert re.search(r"\bMISSED +met\b", printed)
    assert "with the fewest requests: p99 E2E 31 s (MISSED)" in " ".join(printed.split())
    heading = "missed at higher rates: 95 % of the requests with TTFT <= 1 s and TPOT <= 40 ms"
    assert heading in " ".join(printed.split())
    assert "(bottleneck: decode bandwidth)" in " ".join(printed.split())
    for line in ("p99 E2E", "<= 30 s", "95 % of:"):
        assert line in printed.split("Recommended")[0]


def test_preemptions_are_shown_where_there_are_any(capsys, tmp_path):
    made = plan()
    print_plan(made, None)
    assert "preemp" not in capsys.readouterr().out.lower()
    first = made.choices[0]
    (router,) = first.fleets
    full = replace(router, point=replace(router.point, preemptions=1234))
    preempted = replace(made, choices=[replace(first, fleets=[full]), *made.choices[1:]])
    print_plan(preempted, None)
    printed = " ".join(capsys.readouterr().out.split())
    assert "Row 1 has 1,234 preemptions at the requested rate, because" in printed
    page, without = (
        write_page(each, tmp_path / name).read_text()
        for each, name in ((preempted, "with"), (made, "without"))
    )
    assert 'data-name="Preemptions" data-value="1234"' in page
    assert "Preemptions" not in without
    rows = choice_rows(preempted)
    assert [row["preemptions"] for row in rows] == [1234, 0, 0]


def test_rates_that_were_not_computed_are_empty_in_the_csv():
    first = plan().choices[0]
    several = replace(first.highest_rate, seeds_per_s=[4.4, 4.2, 4.6])
    late = replace(first, is_partial=True, fleet_rate=HighestRate(12.0, None))
    complete = replace(first, highest_rate=several)
    without, with_seeds = choice_rows(replace(plan(), choices=[late, complete]))
    draws = ("highest_rate_least_draw_per_s", "highest_rate_most_draw_per_s")
    assert [without[name] for name in (*draws, "fleet_rate_per_s")] == [None] * 3
    assert [with_seeds[name] for name in draws] == [4.2, 4.6]
    assert first.fleet_rate.per_s == 13.200000000000001
    assert with_seeds["fleet_rate_per_s"] == 13.2  # six digits


def test_limits_at_both_ends_of_the_interval_are_printed(capsys):
    made = plan()
    ends = (point(12.0, 12, holds=False, slower=2.0), point(12.0, 12, slower=0.5))
    first = replace(made.choices[0], at_interval_ends=ends)
    print_plan(replace(made, choices=[first, *made.choices[1:]]), None)
    slow, fast = (each.limits[0].value for each in ends)
    assert (
        f"With times at the upper bound of their 90 % interval, at 12 requests/s: p99 E2E {slow}, "
        f"99.0 % of requests within limits (MISSED); at the lower bound: p99 E2E {fast}, 99.0 %"
    ) in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("changes", "gap"),
    [
        ({"chance": 0.9}, ""),
        ({"chance": 0.85}, "P(SLO met) is 85 %, which is less"),
        ({"chance": None, "is_partial": True}, "P(SLO met) was not computed in time"),
        (
            {"chance": None, "coefficients": "server.json"},
            "P(SLO met) is unknown, because server.json has no intervals",
        ),
    ],
)
def test_a_requested_probability_is_claimed_only_where_it_was_found(changes, gap, capsys):
    made = plan()
    long = replace(made.choices[0].seen, requests=100_000)
    first = replace(made.choices[0], fleets=[Fleet("least-requests", long)], **changes)
    ask = replace(made.ask, min_probability=0.9)
    asked = replace(made, ask=ask, choices=[first, *made.choices[1:]])
    print_plan(asked, None)
    header = " ".join(capsys.readouterr().out.split()).partition("row GPUs")[0]
    assert "with P(SLO met) of at least 90 %" in header
    assert (gap in header) if gap else "(row 1" not in header
    said = f"# Requested P(SLO met): at least 90 %, but {gap}"
    assert (said in manifest(asked)) == bool(gap)


def test_a_length_limit_that_was_derived_is_told_with_the_launch_command(capsys):
    made = plan()
    flags = {**made.choices[0].flags, "max_model_len": 2048}
    choices = [replace(made.choices[0], flags=flags), *made.choices[1:]]
    said = "Requests may have up to 2,048 tokens, from the load's longest request (1,280); the"
    for derived in (True, False):
        shown = replace(made, choices=choices, ask=replace(made.ask, derives_length=derived))
        print_plan(shown, None)
        below = capsys.readouterr().out.partition("Recommended:")[2]
        assert (said in " ".join(below.split())) == derived
        assert (said in manifest(shown)) == derived
    of_file = replace(choices[0], coefficients="server.json")
    made = replace(made, choices=[of_file], ask=replace(made.ask, derives_length=True))
    assert said not in manifest(made)


def test_a_server_over_several_machines_says_how_each_is_started(capsys):
    made = plan()
    first = made.choices[0]
    for engine, gpus, said in (
        ("vllm", 16, "spans 2 machines of 8 GPUs: run the command on each of them with --nnodes 2 "
                     "--node-rank RANK --master-addr ADDRESS, and --headless on all but"),
        ("sglang", 32, "spans 4 machines of 8 GPUs: run the command on each of them with --nnodes "
                       "4 --node-rank RANK --dist-init-addr ADDRESS:PORT."),
        ("vllm", 8, ""),
    ):  # fmt: skip
        wide = replace(first, engine=engine, gpus_per_replica=gpus)
        print_plan(replace(made, choices=[wide, *made.choices[1:]]), None)
        printed = " ".join(capsys.readouterr().out.split())
        assert said in printed
        assert ("machines of" in printed) == bool(said)


def test_what_a_fleet_serves_with_headroom_and_after_a_loss_is_told(capsys):
    made = plan()
    first, seen = made.choices[0], made.choices[0].seen
    assert choice_rows(made)[0]["met_with_one_lost"] is None
    late = replace(seen.limits[0], met=False, seconds=31.0, excess=31 / 30)
    lost = replace(seen, holds=False, limits=[late, seen.limits[1]])
    first = replace(first, with_one_lost=lost, with_headroom=seen, chance_with_headroom=0.7)
    changed = replace(made, choices=[first, *made.choices[1:]], ask=replace(made.ask, headroom=0.2))
    print_plan(changed, None)
    printed = " ".join(capsys.readouterr().out.split())
    assert "With one replica lost, at 12 requests/s: p99 E2E 31 s (MISSED), 99.0 % of" in printed
    assert "; --spare-replicas 1 adds a replica." in printed
    assert "With headroom, at 14.4 requests/s: " in printed
    assert ", P(SLO met) 70 %; the table shows" in printed
    assert choice_rows(changed)[0]["met_with_one_lost"] is False


def test_gpus_without_serving_data_are_named(capsys):
    made = plan()
    print_plan(replace(made, ask=replace(made.ask, unmeasured_gpus=["L40S", "T4"])), None)
    assert (
        "\nNo serving data of L40S, T4: no server was measured there; " in capsys.readouterr().out
    )


def test_a_load_of_flags_is_described_once(capsys, tmp_path):
    made = plan()
    flags = replace(made, ask=replace(made.ask, workload="922 tokens in, 230 out"))
    print_plan(flags, None)
    printed = capsys.readouterr().out
    assert printed.startswith("an-organisation/a-model: 12 requests/s, 922 prompt and 230 output")
    assert "922 tokens in" not in write_page(flags, tmp_path).read_text()


def test_servers_take_two_lines_of_a_narrow_table(capsys):
    made = plan()
    label = "H100-SXM TP 4 PP 2 bf16, 8192 tokens, 1024 requests"
    print_plan(replace(made, choices=[replace(each, label=label) for each in made.choices]), None)
    lines = capsys.readouterr().out.split("Recommended:")[0].splitlines()
    first = next(i for i, line in enumerate(lines) if "3 x H100-SXM TP 4" in line)
    assert "8192/1024" in f"{lines[first]}{lines[first + 1]}"
    assert "2 x H100-SXM" in lines[first + 2]
