"""Engine settings that decide the schedule but not the coefficients."""

from __future__ import annotations

from dataclasses import dataclass

from pinn.errors import PinnError
from pinn.specs.deployment import Deployment

ROUTINGS = ("least_loaded", "round_robin")


@dataclass(frozen=True)
class EngineSpec:
    """Flags of vLLM 0.15.1 beside those of ``ServingSpec``; each has vLLM's name and default.

    Attributes:
        async_scheduling: Schedule the next batch while one runs.
        long_prefill_token_threshold: Longest chunk of a prompt per step; 0 for no limit.
        num_gpu_blocks_override: KV cache blocks of one replica, instead of those that fit.
        kv_cache_memory_bytes: Memory of the KV cache on one GPU, instead of what is left.
        activation_reserve_bytes: Memory on one GPU beside weights and KV cache, instead of the
            estimate of ``pinn.simulator.memory``. (Not a flag: vLLM measures it at start.)
        data_parallel_routing: ``least_loaded`` as vLLM's own load balancer, or ``round_robin`` as
            an external one. (Not a flag.)
        reject_long_requests: Answer a request that exceeds max_model_len with an error, as the
            server does, instead of refusing the workload. (Not a flag.)
        kv_transfer_bytes_per_s: Rate at which transferred keys and values arrive. (Not a flag.)
        kv_transfer_latency_s: Delay of each transfer beside its bytes. (Not a flag.)
        api_server_count: Processes that take requests in and stream tokens out; None for vLLM's
            default, one for each data-parallel rank (``vllm/entrypoints/cli/serve.py``).
        v1_multiprocessing: Whether the engine's loop has a process of its own. (Not a flag: the
            environment variable VLLM_ENABLE_V1_MULTIPROCESSING. 0 allows one API server.)
    """

    async_scheduling: bool = True
    long_prefill_token_threshold: int = 0
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: float | None = None
    activation_reserve_bytes: float | None = None
    data_parallel_routing: str = "least_loaded"
    reject_long_requests: bool = False
    kv_transfer_bytes_per_s: float = 25e9
    kv_transfer_latency_s: float = 0.0
    api_server_count: int | None = None
    v1_multiprocessing: bool = True

    def __post_init__(self) -> None:
        if self.long_prefill_token_threshold < 0:
            raise PinnError(
                "--long-prefill-token-threshold must not be negative, got "
                f"{self.long_prefill_token_threshold}"
            )
        if self.num_gpu_blocks_override is not None and self.num_gpu_blocks_override < 2:
            raise PinnError(
                "--num-gpu-blocks-override must be at least 2 (one is vLLM's null block), got "
                f"{self.num_gpu_blocks_override}"
            )
        for name in ("kv_cache_memory_bytes", "activation_reserve_bytes"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise PinnError(f"{name} must not be negative, got {value}")
        if self.api_server_count is not None and self.api_server_count < 1:
            raise PinnError(f"--api-server-count must be at least 1, got {self.api_server_count}")
        if not self.v1_multiprocessing and (self.api_server_count or 1) > 1:
            raise PinnError(
                f"{self.api_server_count} API servers need an engine in a process of its own: "
                "leave --no-v1-multiprocessing or --api-server-count out"
            )
        if self.data_parallel_routing not in ROUTINGS:
            raise PinnError(
                f"data_parallel_routing {self.data_parallel_routing!r} is unknown: use one of "
                f"{', '.join(ROUTINGS)}"
            )
        if not (self.kv_transfer_bytes_per_s > 0 and self.kv_transfer_latency_s >= 0):
            raise PinnError(
                "a KV transfer needs a positive rate and no negative latency, got "
                f"{self.kv_transfer_bytes_per_s} bytes/s and {self.kv_transfer_latency_s} s"
            )


def api_servers(deployment: Deployment, spec: EngineSpec) -> int:
    """API server processes of a deployment."""
    if not spec.v1_multiprocessing:
        return 1
    return spec.api_server_count or deployment.serving.data_parallel_size
