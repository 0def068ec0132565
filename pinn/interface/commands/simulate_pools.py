"""``pinn simulate --prefill --decode``: two pools of servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.coefficients.configurations import parse_pool
from pinn.errors import PinnError
from pinn.specs.serving import VLLM

if TYPE_CHECKING:
    from pinn.simulator.many import Job
    from pinn.simulator.pools import Link, Pool, PoolsRun

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


@dataclass(frozen=True)
class ServedByPools:
    """Two pools, and how they served.

    Attributes:
        run: The run.
        prefill: The prefill pool.
        decode: The decode pool.
    """

    run: PoolsRun
    prefill: Pool
    decode: Pool

    def figures(self, stage: int | None = None) -> dict[str, Any]:
        """All of them, or those of a stage's clients."""
        from pinn.simulator.pool_report import pools_statistics

        return pools_statistics(self.run, self.prefill, self.decode, stage)

    def document(self, about: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Figures ready for JSON, with what is said about the prefill and the decode pool."""
        from pinn.simulator.statistics import overload

        run = self.run.decode
        figures = self.figures()
        for pool, of_pool in zip(figures["pools"].values(), about, strict=True):
            pool["deployment"] = of_pool
        return _finite(figures) | {
            "stages": [_finite(self.figures(stage)) for stage in range(run.workload.stages)],
            "overloaded": overload(run),
            "intervals": {"missing": _NO_INTERVALS},
            "assumptions": _assumptions(self.decode.deployment.serving.engine),
        }


def serve_pools(
    jobs: Sequence[Job], workers: Sequence[int], gb_per_s: float | None, requests: Path | None
) -> ServedByPools:
    """Simulate, print, and write every request.

    Args:
        jobs: Of the prefill and of the decode pool, on the same workload.
        workers: Servers of each.
        gb_per_s: Of the link; None for the GPUs' network adapters.
        requests: Where every request goes.
    """
    from pinn.simulator.pools import simulate_pools

    prefill, decode = (_pool(job, count) for job, count in zip(jobs, workers, strict=True))
    run = simulate_pools(prefill, decode, jobs[0].workload, _link(prefill, decode, gb_per_s))
    served = ServedByPools(run, prefill, decode)
    _report(served)
    if requests is not None:
        from pinn.simulator.run import write_requests

        write_requests(run.decode, requests, run.transfers.columns())
    return served


def _pool(job: Job, workers: int) -> Pool:
    from pinn.simulator.engine_spec import EngineSpec
    from pinn.simulator.pools import Pool

    engine = replace(job.engine or EngineSpec(), replicas=workers)
    return Pool(job.deployment, job.latency, engine)


def _link(prefill: Pool, decode: Pool, gb_per_s: float | None) -> Link:
    from pinn.simulator.pools import Link, default_link

    latency_s = decode.engine.kv_transfer_latency_s
    rate = default_link(prefill, decode).bytes_per_s if gb_per_s is None else gb_per_s * 1e9
    return Link(rate, latency_s)


def _report(served: ServedByPools) -> None:
    from pinn.common.screen import say
    from pinn.planning.candidates import hardware_label
    from pinn.simulator.pool_report import print_pools
    from pinn.simulator.statistics import overload

    run, prefill, decode = served.run.decode, served.prefill.deployment, served.decode.deployment
    late = overload(run)
    heading = f"{decode.model.name}, {run.workload.name}, prefill and decode apart"
    say(f"{heading}, {late}" if late else heading)
    labels = {"prefill": hardware_label(prefill), "decode": hardware_label(decode)}
    print_pools(run, served.figures(), labels)
    say(f"Assumed: {'; '.join(_assumptions(decode.serving.engine))}.")
    say(f"No intervals: {_NO_INTERVALS}.")


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


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    import math

    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
