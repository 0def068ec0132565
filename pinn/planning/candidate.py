"""A candidate: a replica that could be rented, its label, and its simulation."""

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
#: Function from predicted to simulated coefficients, for error scenarios.
Rescale = Callable[[LinearLatency], LinearLatency]


@dataclass(frozen=True)
class Candidate:
    """Replica that could be rented.

    Attributes:
        configuration: Model, GPU, format and flags in their canonical spelling; absent flags have
            vLLM's defaults.
        latency: Coefficients of the replica's deployment.
        engine: Further engine settings.
        source: ``network``, or the path of the coefficient file.
    """

    configuration: Values
    latency: LinearLatency
    engine: EngineSpec
    source: str = NETWORK

    @property
    def deployment(self) -> Deployment:
        """Return the model, GPU and configuration."""
        return self.latency.deployment

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of one replica."""
        return gpu_count(self.deployment)

    @property
    def hardware(self) -> tuple[str, str]:
        """Return a key shared by candidates that differ in the scheduler's limits alone."""
        return (hardware_label(self.deployment), self.source)

    @property
    def label(self) -> str:
        """Return the label: ``H100-SXM TP 8 bf16, 8192 tokens, 256 requests``.

        Tokens and requests are the limits of a step.
        """
        recipe = self.deployment.recipe
        return (
            f"{hardware_label(self.deployment)}, {recipe.token_budget} tokens, "
            f"{recipe.max_requests} requests"
        )

    @property
    def prompt_latency(self) -> LinearLatency:
        """Return the coefficients of the servers that compute prompts."""
        return self.latency

    def serve(
        self, workload: Workload, engine: EngineSpec, rescale: Rescale, early_stop: EarlyStop | None
    ) -> Run:
        """Simulate replicas.

        Args:
            workload: Requests that are sent to them.
            engine: Settings of the candidate's engine, with the replicas' number and routing.
            rescale: Error scenario of the coefficients.
            early_stop: Criterion; if met, ``StoppedEarlyError`` is raised. None for no
                stop.
        """
        latency = rescale(self.latency)
        return simulate(self.deployment, workload, latency, engine, early_stop=early_stop)

    def parts(self, run: Run) -> list[tuple[Run, LinearLatency]]:
        """Return run and coefficients of each kind of server; the kind that decodes is last."""
        return [(run, self.latency)]

    def rejected(self, reason: str, *, simulated: bool = True) -> RejectedCandidate:
        """Return the record of a candidate that is not a choice, with the reason."""
        return RejectedCandidate(self.label, self.deployment.gpu.name, reason, simulated)


def gpu_count(deployment: Deployment) -> int:
    """Return the GPUs of one replica: tensor x pipeline x data-parallel ranks."""
    recipe = deployment.recipe
    return recipe.tensor_parallel_size * recipe.pipeline_parallel_size * recipe.data_parallel_size
