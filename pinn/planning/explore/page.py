"""A page of the servers that start, of every GPU, format and tensor-parallel size, in one file."""

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pinn.common.documents import check_size
from pinn.common.files import json_text
from pinn.common.pages import template
from pinn.common.progress import counted
from pinn.engines import configurations
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.costs import COST_NAMES, model_costs
from pinn.planning import candidate, fleet
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.memory import max_model_len, memory_fit
from pinn.specs.flags import flags_of
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import VLLM, ServingSpec
from pinn.surrogate import surrogate

# The servers that a page can show: every GPU, format and tensor-parallel size that starts.

#: Tensor-parallel sizes of a machine, and formats beside the checkpoint's own, by default.
SIZES = (1, 2, 4, 8)
FORMATS = (None, "fp8")
#: Servers of a page: each is some 3 kB of it.
MOST_SERVERS = 200


@dataclass(frozen=True)
class Servers:
    """What a page shows.

    Attributes:
        model: What it was called.
        flags: Those that hold for all servers, as they were given.
        found: One entry per server, ready for JSON, in SI units.
        left_out: ``gpu``, ``tp``, ``precision`` and ``reason`` of those that do not start.
    """

    model: str
    flags: Mapping[str, Any]
    found: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)


def find_servers(
    shared: Mapping[str, Any],
    gpus: Sequence[str],
    sizes: Sequence[int],
    formats: Sequence[str | None],
    checkpoint: Path,
) -> Servers:
    """Look for servers.

    Args:
        shared: Model and flags of all of them, keys of ``pinn.engines.configurations.KEYS``.
        gpus: To choose from.
        sizes: Tensor-parallel sizes.
        formats: Number formats; None is the checkpoint's own.
        checkpoint: Of the network.

    Raises:
        PinnError: If none starts, or the page's formulas do not hold for one.
    """
    check_size(len(gpus) * len(sizes) * len(formats), MOST_SERVERS, "servers of a page", "ask less")
    flags = {k: v for k, v in shared.items() if k != "model"}
    servers = Servers(shared["model"], flags)
    deployments: dict[tuple[str, int, str], tuple[Deployment, str]] = {}
    for gpu, form, size in itertools.product(gpus, formats, sizes):
        row = {**shared, "gpu": gpu, "tensor_parallel_size": size}
        row |= {"precision": form} if form else {}
        deployment, reason = _started(row)
        if deployment is None:
            name = load_gpu(gpu).name
            entry = {"gpu": name, "tp": size, "precision": form or "", "reason": reason}
            servers.left_out.append(entry)
        else:
            key = (deployment.gpu.name, size, candidate.format_label(deployment))
            deployments.setdefault(key, (deployment, form or ""))
    if not deployments:
        reasons = "; ".join(dict.fromkeys(each["reason"] for each in servers.left_out))
        raise PinnError(f"no server starts: {reasons}")
    chosen = [deployment for deployment, _ in deployments.values()]
    coefficients = surrogate.Surrogate.load(checkpoint).coefficients(chosen)
    for i, (key, (deployment, form)) in counted(list(enumerate(deployments.items())), "server"):
        latency = LinearLatency(deployment, coefficients.beta[i], coefficients.alpha[i])
        named = dict(zip(("gpu", "tp", "format"), key, strict=True)) | {"precision": form}
        half = {"half_widths": _half_widths(checkpoint, deployment)}
        servers.found.append(named | _entry(latency) | half)
    return servers


def _half_widths(checkpoint: Path, deployment: Deployment) -> dict[str, float] | None:
    """Of the 90 % intervals, in log units; None where the checkpoint has none."""
    found = fleet.prediction_interval(checkpoint, deployment)
    if found is None:
        return None
    return {"tpot": found.bad.step, "ttft": max(found.bad.step, found.bad.request)}


def _started(row: Mapping[str, Any]) -> tuple[Deployment | None, str]:
    """The deployment, or why the engine does not start."""
    try:
        deployment = configurations.make_deployment(configurations.canonical(row))
    except PinnError as error:
        return None, str(error)
    _check_expressible(deployment)
    fit = memory_fit(deployment)
    return (deployment, "") if fit.fits else (None, fit.reason)


def _check_expressible(deployment: Deployment) -> None:
    """Whether the page's schedule is that of the deployment."""
    recipe = deployment.recipe
    told = {
        f"engine {deployment.serving.engine}": deployment.serving.engine != VLLM,
        "pipeline parallelism": recipe.pipeline_parallel_size > 1,
        "data parallelism": recipe.data_parallel_size > 1,
        "speculative decoding": recipe.speculation is not None,
    }
    wrong = [name for name, found in told.items() if found]
    if wrong:
        raise PinnError(
            f"the page knows a vLLM server of one stage without drafts, got {', '.join(wrong)}: "
            "use 'pinn simulate', which schedules it step by step"
        )


def _entry(latency: LinearLatency) -> dict[str, Any]:
    """Costs, coefficients and limits of a server; the browser's formulas name them the same."""
    deployment = latency.deployment
    recipe, costs = deployment.recipe, model_costs([deployment])
    return {
        "gpus": recipe.tensor_parallel_size,
        "window": deployment.model.window_tokens,
        "budget": recipe.token_budget,
        "max_requests": recipe.max_requests,
        "max_model_len": max_model_len(deployment),
        "kv_tokens": memory_fit(deployment).kv_tokens,
        "costs": {name: float(getattr(costs, name)[0]) for name in COST_NAMES},
        "beta": latency.beta.tolist(),
        "first_token": first_token_s(latency),
        "completion_s": latency.post_decode_fixed_overhead(),
    }


def first_token_s(latency: LinearLatency) -> dict[str, float]:
    """What happens to a request's first token outside the steps: linear in its prompt."""
    start, with_one = (
        latency.queueing_time(prompt_tokens)
        + latency.scheduling_processing_time(prompt_tokens)
        + latency.output_token_processing_time()
        for prompt_tokens in (0.0, 1.0)
    )
    return {"constant_s": start, "per_prompt_token_s": with_one - start}


# The page, as one file that asks nobody.

#: Read in this order: formulas, what is made of them, drawing, the page itself.
_SCRIPTS = ("step_formulas.js", "predict.js", "chart.js", "explore.js")
_PACKAGE = "pinn.planning.explore"
#: Where the sliders stand at first.
LOAD = {"inFlight": 32, "context": 0, "prompt": 1024, "output": 256}


def render(servers: Servers, source: str) -> str:
    """The page's text.

    Args:
        servers: Of :func:`find_servers`.
        source: A sentence on where the coefficients are from.
    """
    intervals = all(server["half_widths"] is not None for server in servers.found)
    data = {
        "servers": servers.found,
        "left_out": servers.left_out,
        "load": LOAD,
        "arguments": _arguments(servers),
    }
    return template(_PACKAGE, "explore.html.j2").render(
        model=servers.model,
        engine="vLLM",
        flags=", ".join(f"{name} {value}" for name, value in servers.flags.items()),
        intervals=intervals,
        bands="Bands are 90 % intervals." if intervals else "",
        source=source,
        style=Markup(_text("explore.css")),
        script=Markup("\n".join(map(_text, _SCRIPTS))),
        # No text in it can end the script that it stands in.
        data=Markup(json_text(data, allow_nan=False).replace("<", "\\u003c")),
    )


def _arguments(servers: Servers) -> str:
    """Model and flags as a command line has them."""
    options = {flag.name: flag.option for flag in flags_of(ServingSpec)}
    words = ["--model", servers.model]
    for name, value in servers.flags.items():
        option = options.get(name, f"--{name.replace('_', '-')}")
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [option, str(value)]
    return shlex.join(words)


def _text(name: str) -> str:
    return (files(_PACKAGE) / name).read_text(encoding="utf-8")
