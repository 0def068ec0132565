"""Reads the reports of the load generator inference-perf (``*_lifecycle_metrics.json``).

Two things in the reports of older versions are not what they say:

* ``time_per_output_token`` and ``inter_token_latency`` count two stream chunks per token, so they
  come out near half. With ``ignore_eos`` every request generates the tokens that were asked for,
  so the true mean is (E2E - TTFT) / (requested output tokens - 1). Where the reported mean lies
  between 0.4 and 0.6 of that, it is *halved* and replaced.
* ``output_len`` counts tokens of the re-tokenized text, up to 20 % fewer than were generated.

``results/config.yaml`` is what the tool ran, ``profile.yaml`` what it was asked to run.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from pinn.common.documents import read_json, read_yaml
from pinn.common.files import ReadReport
from pinn.errors import PinnError, printable
from pinn.specs.flags import given_flags
from pinn.specs.schema_faults import first_fault
from pinn.specs.serving import ServingSpec

#: A reported ITL within this range of the true one counts two chunks per token, as inference-perf
#: did up to 0.4. The room on either side of a half is an assumption.
HALVED_RANGE = (0.4, 0.6)

#: A stage is overloaded above this share of failed requests, or below this share of the rate
#: (assumptions).
MAX_FAILED_SHARE = 0.01
MIN_SERVED_SHARE = 0.9

#: Flags that have a column whether a run names them or not.
_ALWAYS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
_SUFFIX = "_lifecycle_metrics.json"


class _Spread(BaseModel):
    """A distribution in seconds or tokens."""

    mean: float
    median: float | None = None
    p90: float | None = None
    p99: float | None = None


class _Latency(BaseModel):
    request_latency: _Spread
    time_to_first_token: _Spread | None = None
    time_per_output_token: _Spread | None = None
    inter_token_latency: _Spread | None = None


class _Throughput(BaseModel):
    requests_per_sec: float


class _Successes(BaseModel):
    count: int
    latency: _Latency | None = None
    throughput: _Throughput | None = None
    prompt_len: _Spread | None = None
    #: Replaces ``prompt_len`` after 0.6.1.
    prompt_tokens: _Spread | None = None
    #: Re-tokenized; ``output_tokens`` is the server's count, after 0.6.1.
    output_len: _Spread | None = None
    output_tokens: _Spread | None = None

    @property
    def prompt_mean(self) -> float | None:
        return _mean(self.prompt_len or self.prompt_tokens)

    @property
    def output_mean(self) -> float | None:
        return _mean(self.output_tokens or self.output_len)


class _Failures(BaseModel):
    count: int = 0


class _Load(BaseModel):
    count: int
    send_duration: float | None = None
    requested_rate: float | None = None
    concurrency: int | None = None


class _Report(BaseModel):
    load_summary: _Load
    successes: _Successes
    failures: _Failures = Field(default_factory=_Failures)


def read_inference_perf(folder: Path) -> tuple[pd.DataFrame, ReadReport]:
    """Read the reports of a run, or of every run in a folder.

    Args:
        folder: Holds ``results/*_lifecycle_metrics.json`` (or the reports themselves), beside
            ``profile.yaml`` and ``exp-config.yaml``; or folders that do.

    Returns:
        One row per report: ``run``, ``stage`` (``0``, ``1``, ... or ``all``), ``model``,
        ``tensor_parallel_size`` and every other flag where ``exp-config.yaml`` has it,
        ``rate_per_s``, ``concurrency``, ``duration_s``, ``requests_per_s``, ``requests``,
        ``failed``, ``overloaded`` (and ``why``),
        ``prompt_tokens`` (mean of the re-tokenized prompts), ``output_tokens`` (requested),
        ``output_tokens_reported``, ``ignore_eos``, ``prompts`` (distinct ones: each repeats),
        ``prompt_groups``, ``shared_tokens``,
        ``profile_differs`` (settings that ran otherwise than asked), mean, p90 and p99 of
        ``ttft_*_s`` and ``e2e_*_s``, ``itl_mean_reported_s``, ``itl_mean_s`` and ``itl_rule``
        (``halved``, ``as counted`` or ``unknown``). And the counts of files.

    Raises:
        PinnError: If the folder is missing or holds no report that can be read.
    """
    files = sorted(folder.rglob(f"*{_SUFFIX}")) if folder.is_dir() else []
    files = [f for f in files if not f.name.startswith("per_request")]
    if not files:
        raise PinnError(f"no *{_SUFFIX} under {folder}: give the folder of an inference-perf run")
    rows, refused = [], Counter[str]()
    for file in files:
        try:
            content = read_json(file)
        except PinnError:
            refused["invalid JSON"] += 1
            continue
        try:
            rows.append(read_report(file, content))
        except ValidationError as error:
            where, words = first_fault(error)
            refused[f"{words}: {where}"] += 1
        except (AttributeError, TypeError, LookupError, ArithmeticError) as error:
            met = printable(error, 60) or type(error).__name__
            refused[f"a value that inference-perf does not write there ({met})"] += 1
    if not rows:
        raise PinnError(f"{folder}: none of {len(files)} reports can be read: {dict(refused)}")
    report = ReadReport(folder.name, "", "", len(files), len(rows), dict(refused))
    return pd.DataFrame(rows), report


def read_report(file: Path, content: Any) -> dict[str, Any]:
    """One report, of that JSON, as a row of :func:`read_inference_perf`.

    Raises:
        ValidationError: If it is no report.
    """
    report = _Report.model_validate(content)
    results = file.parent
    run = results.parent if results.name == "results" else results
    config, profile = _yaml(results / "config.yaml"), _yaml(run / "profile.yaml")
    experiment = _yaml(run / "exp-config.yaml")
    shared = (config.get("data") or {}).get("shared_prefix") or {}
    server = config.get("server") or {}
    requested = shared.get("output_len")
    ignore_eos = bool(server.get("ignore_eos"))
    name = file.name.removesuffix(_SUFFIX)
    stage = "all" if name == "summary" else name.removeprefix("stage_")
    overloaded, why = _overload(report)
    throughput = report.successes.throughput
    groups, each = shared.get("num_groups"), shared.get("num_prompts_per_group")
    row: dict[str, Any] = {
        "run": run.name,
        "stage": stage,
        "model": experiment.get("model") or server.get("model_name"),
        "tensor_parallel_size": experiment.get("tensor_parallelism"),
        **{key: experiment.get(key) for key in _ALWAYS},
        **given_flags(ServingSpec, experiment, str(run / "exp-config.yaml")),
        "rate_per_s": report.load_summary.requested_rate,
        "concurrency": report.load_summary.concurrency,
        "duration_s": report.load_summary.send_duration,
        "requests_per_s": throughput and throughput.requests_per_sec,
        "requests": report.load_summary.count,
        "failed": report.failures.count,
        "overloaded": overloaded,
        "why": why,
        "prompt_tokens": report.successes.prompt_mean,
        "output_tokens": requested,
        "output_tokens_reported": report.successes.output_mean,
        "ignore_eos": ignore_eos,
        "prompts": groups * each if groups and each else None,
        "prompt_groups": groups,
        "shared_tokens": shared.get("system_prompt_len"),
        "profile_differs": ", ".join(_differences(profile, shared)),
    }
    latency = report.successes.latency
    for label, spread in (
        ("ttft", latency and latency.time_to_first_token),
        ("e2e", latency and latency.request_latency),
    ):
        for key in ("mean", "p90", "p99"):
            row[f"{label}_{key}_s"] = getattr(spread, key) if spread else None
    row["itl_mean_reported_s"], row["itl_mean_s"], row["itl_rule"] = inter_token_latency(
        reported_s=_reported_itl(latency),
        e2e_s=row["e2e_mean_s"],
        ttft_s=row["ttft_mean_s"],
        output_tokens=requested if ignore_eos else row["output_tokens_reported"],
    )
    return row


def inter_token_latency(
    *,
    reported_s: float | None,
    e2e_s: float | None,
    ttft_s: float | None,
    output_tokens: float | None,
) -> tuple[float | None, float | None, str]:
    """The reported mean ITL, the true one, and the rule that gave it.

    Args:
        reported_s: Mean as reported.
        e2e_s: Mean request latency.
        ttft_s: Mean time to first token.
        output_tokens: Tokens generated: the requested ones where the end token was ignored, else
            the counted ones.

    Returns:
        Reported, true, and ``halved`` where the report counted two chunks per token, ``as counted``
        where it agrees with the tokens generated, ``unknown`` where it does neither or the length
        is unknown; then the true one is (E2E - TTFT) / (tokens - 1), or the reported one.

    >>> inter_token_latency(reported_s=0.0036, e2e_s=1.81, ttft_s=0.025, output_tokens=247)[2]
    'halved'
    """
    if e2e_s is None or ttft_s is None or not output_tokens or output_tokens <= 1:
        return reported_s, reported_s, "unknown"
    true_s = (e2e_s - ttft_s) / (output_tokens - 1)
    if reported_s is None or true_s <= 0:
        return reported_s, true_s, "unknown"
    share = reported_s / true_s
    if HALVED_RANGE[0] <= share <= HALVED_RANGE[1]:
        return reported_s, true_s, "halved"
    # Counting fewer tokens than were generated lengthens the reported mean by up to a third.
    return reported_s, true_s, "as counted" if 0.9 <= share <= 1.35 else "unknown"


def _reported_itl(latency: _Latency | None) -> float | None:
    if latency is None:
        return None
    return _mean(latency.time_per_output_token) or _mean(latency.inter_token_latency)


def _overload(report: _Report) -> tuple[bool, str]:
    """Whether the server could not keep up, and what shows it."""
    failed, sent = report.failures.count, max(report.load_summary.count, 1)
    if failed / sent > MAX_FAILED_SHARE:
        return True, f"{failed} of {sent} requests failed"
    rate, throughput = report.load_summary.requested_rate, report.successes.throughput
    if rate and throughput and throughput.requests_per_sec < MIN_SERVED_SHARE * rate:
        return True, f"served {throughput.requests_per_sec:.3g} of {rate:.3g} requests/s"
    return False, ""


def _differences(profile: dict[str, Any], ran: dict[str, Any]) -> list[str]:
    """Settings of the shared-prefix data that ran otherwise than the profile asked."""
    asked = (profile.get("data") or {}).get("shared_prefix") or {}
    names = {
        "num_unique_system_prompts": "num_groups",
        "num_users_per_system_prompt": "num_prompts_per_group",
        **{name: name for name in ("system_prompt_len", "question_len", "output_len")},
    }
    return [
        f"{there} {ran[there]} instead of {asked[here]}"
        for here, there in names.items()
        if here in asked and there in ran and asked[here] != ran[there]
    ]


def _mean(spread: _Spread | None) -> float | None:
    return None if spread is None else spread.mean


def _yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    values = read_yaml(path)
    return values if isinstance(values, dict) else {}
