"""Candidate of a plan: a replica that could be rented, its label, and its simulation."""

from collections.abc import Callable
from dataclasses import dataclass

from pinn.engines.configurations import Values
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.labels import hardware_label
from pinn.planning.plan import RejectedCandidate
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run
from pinn.simulator.simulate import EarlyStop, simulate
from pinn.simulator.workloads.workload import Workload

NETWORK = "network"
#: Function that scales predicted coefficients by a scenario's assumed prediction errors.
Rescale = Callable[[LinearLatency], LinearLatency]


@dataclass(frozen=True)
class Candidate:
    """Replica that could be rented.

    Attributes:
        configuration: Model, GPU, format and flags in their canonical spelling; omitted flags have
            vLLM's defaults.
        latency: Latency model with the coefficients of the replica's deployment.
        engine: Engine settings of the replica's simulation.
        source: Source of the coefficients: ``network``, or the path of a coefficient file.
    """

    configuration: Values
    latency: LinearLatency
    engine: EngineSpec
    source: str = NETWORK

    @property
    def deployment(self) -> Deployment:
        """Model, GPU and resolved engine configuration."""
        return self.latency.deployment

    @property
    def deployments(self) -> list[Deployment]:
        """Deployment of each type of worker."""
        return [self.deployment]

    @property
    def gpus(self) -> int:
        """Number of GPUs of one replica."""
        return gpu_count(self.deployment)

    @property
    def hardware(self) -> tuple[str, str]:
        """Key shared by candidates that differ only in scheduler limits."""
        return (hardware_label(self.deployment), self.source)

    @property
    def label(self) -> str:
        """Label such as ``H100-SXM TP 8 bf16, 8192 tokens, 256 requests``.

        Tokens and requests in the label are the maximum numbers per step.
        """
        recipe = self.deployment.recipe
        return (
            f"{hardware_label(self.deployment)}, {recipe.token_budget} tokens, "
            f"{recipe.max_requests} requests"
        )

    @property
    def prompt_latency(self) -> LinearLatency:
        """Latency model of the servers that compute prompts; without P/D, that of the replica."""
        return self.latency

    def serve(
        self, workload: Workload, engine: EngineSpec, rescale: Rescale, early_stop: EarlyStop | None
    ) -> Run:
        """Simulate replicas of the candidate under a load.

        Args:
            workload: Requests that are sent to all replicas together.
            engine: Settings of the candidate's engine, with the number of replicas and routing.
            rescale: Function that scales the coefficients by assumed prediction errors.
            early_stop: Criterion that raises ``StoppedEarlyError`` when it is met; None to run to
                the end.
        """
        latency = rescale(self.latency)
        return simulate(self.deployment, workload, latency, engine, early_stop=early_stop)

    def parts(self, run: Run) -> list[tuple[Run, LinearLatency]]:
        """Return the run and the latency model of each type of worker, decode workers last."""
        return [(run, self.latency)]

    def rejected(self, reason: str, *, simulated: bool = True) -> RejectedCandidate:
        """Return a record of the candidate, with the reason why the plan does not contain it."""
        return RejectedCandidate(self.label, self.deployment.gpu.name, reason, simulated)


def gpu_count(deployment: Deployment) -> int:
    """Return the number of GPUs of one replica: tensor x pipeline x data-parallel ranks."""
    recipe = deployment.recipe
    return recipe.tensor_parallel_size * recipe.pipeline_parallel_size * recipe.data_parallel_size
