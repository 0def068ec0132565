"""Whole ingestions of runs with absurd numbers and repeated, disordered spans."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from assumed_priors import beta_prior, prior_coefficients
from trace_runs import engine_run, lines_of, read_lines

from pinn.calibration.alpha import calibrate_alpha
from pinn.calibration.calibrate import BetaSettings, calibrate_to, chosen, read_intervals
from pinn.calibration.prior import assumed_prior
from pinn.calibration.requests import read_requests
from pinn.measurements.traces.ingestion import ingest_vllm
from pinn.measurements.traces.trace_tables import Target

TARGET = Target("meta-llama/Llama-3.1-8B", "H100")
NUMBER = re.compile(r'"(intValue|doubleValue)":"?-?[\d.e+]+"?')
ABSURD = ("0", "-1", "65535", str(2**32), str(10**12), str(2**63 - 1), str(-(2**63)), "1e300")


def broken(draw: random.Random, share: float) -> list[str]:
    """A run, one span a line, in which a share of the lines has one number replaced."""
    lines = []
    for line in lines_of(engine_run(60), step_sampling=0.5, snapshot_sampling=0.3):
        group = json.loads(line)["resourceSpans"][0]
        for scope in group["scopeSpans"]:
            for span in scope["spans"]:
                one = group | {"scopeSpans": [scope | {"spans": [span]}]}
                lines.append(json.dumps({"resourceSpans": [one]}, separators=(",", ":")))
    for number, line in enumerate(lines):
        if draw.random() < share:
            place = draw.choice(list(NUMBER.finditer(line)))
            value = draw.choice(ABSURD)
            text = f'"{place[1]}":' + (f'"{value}"' if place[1] == "intValue" else value)
            lines[number] = line[: place.start()] + text + line[place.end() :]
    lines += draw.sample(lines, 5)
    draw.shuffle(lines)
    return lines


@pytest.mark.parametrize("seed", range(4))
def test_absurd_numbers_stop_nothing(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    (tmp_path / "traces.json").write_text("\n".join(broken(draw, 0.05 * (seed + 1))))
    tables = ingest_vllm(tmp_path / "traces.json", tmp_path / "tables", TARGET)
    reports = tables.manifest["reports"]
    for report in reports.values():
        assert report["read"] == report["accepted"] + sum(report["refused"].values())
    assert reports["events"]["refused"]
    assert sum(tables.manifest["intervals"].values()) == reports["steps"]["accepted"]
    base, deployment = prior_coefficients(1), tables.deployment()
    intervals = read_intervals(tables, deployment, base.beta[0])
    found = calibrate_to(chosen(intervals, BetaSettings("both", 50)), beta_prior(base.beta[0]))
    prior = assumed_prior(np.concatenate([found.beta, base.alpha[0]]))
    alpha = calibrate_alpha(read_requests(tables, deployment, found.beta), prior).posterior.alpha
    assert (np.isfinite(alpha) & (alpha >= 0)).all()


def test_servers_of_any_bytes_are_told_apart(tmp_path: Path) -> None:
    line = lines_of(engine_run(5), step_sampling=1.0)[0]
    odd = line.encode().replace(b'"vllm"', b'"v\xffllm"')
    raw = read_lines(tmp_path, [line, odd])
    assert raw.reports["lines"].read == 2
    assert len(raw.servers) == 2
