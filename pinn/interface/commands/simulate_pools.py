"""``pinn simulate --prefill --decode``: two pools of servers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pinn.coefficients.configurations import parse_pool
from pinn.common.screen import say
from pinn.errors import PinnError
from pinn.interface.commands.simulation_report import finite
from pinn.planning.candidates import hardware_label
from pinn.simulator import pools
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.run import write_requests
from pinn.simulator.simulate import Job
from pinn.simulator.statistics import overload
from pinn.specs.serving import VLLM
from pinn.units import GIGA

_NO_INTERVALS = "nothing measured says how far off two pools together are"


def pool_flags(prefill: str | None, decode: str | None) -> list[tuple[int, dict[str, Any]]]:
    """(servers, flags) of the prefill and of the decode pool.

    Raises:
        PinnError: If one is missing or cannot be read.
    """
    texts = {"--prefill": prefill, "--decode": decode}
    missing = [option for option, text in texts.items() if text is None]
    if missing:
        raise PinnError(
            f"{missing[0]} is missing: prefill and decode apart take both, such as "
            "--prefill '2x tp=4' --decode '1x tp=8' (--kv-link-gb-per-s is the link between them)"
        )
    return [parse_pool(text, option) for option, text in texts.items() if text is not None]


def refuse(given: Mapping[str, Any]) -> None:
    """Refuse options that say something of one engine.

    Raises:
        PinnError: If one is given.
    """
    remedies = {
        "replicas": "write the number of servers in each pool, such as --prefill '2x tp=4'",
        "kv_transfer_bytes_per_s": "give --kv-link-gb-per-s",
        "timeline": "it draws one engine: leave it out",
        "sensitivity": "its coefficients would be of two deployments: leave it out",
    }
    for name, remedy in remedies.items():
        if given.get(name) is not None:
            raise PinnError(f"--{name.replace('_', '-')} with --prefill and --decode: {remedy}")


def serve_pools(
    jobs: Sequence[Job],
    workers: Sequence[int],
    gb_per_s: float | None,
    requests: Path | None,
    about: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Simulate, print, and write every request; the figures ready for JSON.

    Args:
        jobs: Of the prefill and of the decode pool, on the same workload.
        workers: Servers of each.
        gb_per_s: Of the link; None for the GPUs' network adapters.
        requests: Where every request goes.
        about: What JSON says of each.
    """
    prefill, decode = (
        pools.Pool(job.deployment, job.latency, replace(job.engine or EngineSpec(), replicas=count))
        for job, count in zip(jobs, workers, strict=True)
    )
    rate = pools.default_link(prefill, decode).bytes_per_s if gb_per_s is None else gb_per_s * GIGA
    link = pools.Link(rate, decode.engine.kv_transfer_latency_s)
    served = pools.simulate_pools(prefill, decode, jobs[0].workload, link)
    run, late = served.decode, overload(served.decode)
    stages = (None, *range(run.workload.stages))
    figures, *of_stages = (
        pools.pools_statistics(served, prefill, decode, stage) for stage in stages
    )
    assumptions = _assumptions(decode.deployment.serving.engine)
    heading = f"{decode.deployment.model.name}, {run.workload.name}, prefill and decode apart"
    say(f"{heading}, {late}" if late else heading)
    labels = [hardware_label(pool.deployment) for pool in (prefill, decode)]
    pools.print_pools(run, figures, dict(zip(("prefill", "decode"), labels, strict=True)))
    say(f"Assumed: {'; '.join(assumptions)}.")
    say(f"No intervals: {_NO_INTERVALS}.")
    if requests is not None:
        write_requests(run, requests, served.transfers.columns())
    for pool, of_pool in zip(figures["pools"].values(), about, strict=True):
        pool["deployment"] = of_pool
    return finite(figures) | {
        "stages": finite(of_stages),
        "overloaded": late,
        "intervals": {"missing": _NO_INTERVALS},
        "assumptions": assumptions,
    }


def _assumptions(engine: str) -> list[str]:
    """What is taken for granted about two pools of an engine."""
    return [
        "a transfer follows the prefill and does not overlap it",
        "the link of each prefill worker and of each decode worker carries one transfer at a time",
        "the decode server computes the prompt's last token again and gives the first token, as "
        "with vLLM's NixlConnector"
        if engine == VLLM
        else "the first token travels beside the keys and values",
        "a prompt's blocks on the prefill server are free when its step ends",
    ]
