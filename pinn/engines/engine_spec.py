"""Engine settings that affect scheduling, but not the coefficients of step time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pinn.engines.deployment import Deployment
from pinn.engines.recipe import LEAST_LOADED, ROUND_ROBIN
from pinn.engines.routers import DEFAULT_WEIGHTS, PREFIX_AWARE, ROUTERS, read_weights
from pinn.errors import PinnError
from pinn.specs.flags import check_flags, flag
from pinn.specs.serving import SGLANG

ROUTINGS = (LEAST_LOADED, ROUND_ROBIN)
#: Implementations of a KV cache tier in host memory: vLLM's own, and LMCache.
NATIVE, LMCACHE = "native", "lmcache"
#: Events at which SGLang's HiCache stores a prefix: its computation, its first reuse, or its
#: eviction from the GPU (sglang 0.5.3 to 0.5.23 server_args.py, also the source of the choices
#: below).
WRITE_POLICIES = (WRITE_THROUGH, WRITE_SELECTIVE, WRITE_BACK) = (
    "write_through", "write_through_selective", "write_back",
)  # fmt: skip
IO_BACKENDS = (KERNEL, DIRECT) = ("kernel", "direct")
MEM_LAYOUTS = (
    "layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head",
)  # fmt: skip
#: Overhead of one small copy over PCIe, in seconds: the transfer time of 28 KiB at 64 GB/s.
#: Separate copies of up to 28 KiB are slower than one kernel that saturates an H100's PCIe link
#: (vllm 0.33.0 v1/kv_offload/cpu/swap_blocks_triton.py: THRESHOLD_BYTES).
COPY_S = 4.5e-7


@dataclass(frozen=True)
class EngineSpec:
    """Flags that ``ServingSpec`` does not have, with the names and defaults of vLLM or SGLang.

    Some fields have no flag in vLLM:

    - ``activation_reserve_bytes``: vLLM measures this number of bytes at startup. A given value
      overrides the estimate by ``pinn.memory``.
    - ``replicas``: number of separate servers. Like data-parallel ranks, they share a load
      balancer.
    - ``data_parallel_routing``: routing policy; ``round_robin`` means an external load balancer.
    - ``router`` and its settings: see ``pinn.engines.routers``.
    - ``kv_transfer_*``: transfer of keys and values between prefill and decode workers.
    - ``reject_long_requests``: whether overlong requests are rejected one by one; otherwise, a
      workload that contains any is refused.

    An ``api_server_count`` of None means one server per data-parallel rank
    (``vllm/entrypoints/cli/serve.py``), or a single one without ``v1_multiprocessing``.
    """

    long_prefill_token_threshold: int = flag(
        0, "Maximum chunk of a prompt in a step.", unit="tokens", least=0, shown="no limit"
    )
    num_gpu_blocks_override: int | None = flag(
        None,
        "Number of KV cache blocks of each data-parallel rank.",
        least=2,
        shown="what fits",
        remedy="one is vLLM's null block",
    )
    kv_cache_memory_bytes: float | None = flag(
        None,
        "Size of the KV cache on each GPU.",
        unit="bytes",
        least=0,
        shown="the memory that is left",
    )
    activation_reserve_bytes: float | None = flag(
        None,
        "Memory on each GPU for activations and buffers. vLLM measures it at start-up.",
        unit="bytes",
        least=0,
        shown="an estimate",
    )
    replicas: int = flag(1, "Number of identical servers behind a load balancer.", least=1)
    data_parallel_routing: str | None = flag(
        None,
        "Rule by which requests are spread over servers and data-parallel ranks.",
        shown="the engine's",
        allowed=ROUTINGS,
    )
    router: str | None = flag(
        None,
        "Rule by which a router sends requests to --replicas. Each engine then spreads its "
        "requests over its data-parallel ranks.",
        shown="none: --data-parallel-routing over all ranks",
        allowed=ROUTERS,
    )
    router_weights: str = flag(
        "",
        "Scorers of --router prefix-aware and their weights.",
        shown=",".join(f"{name}={weight:g}" for name, weight in DEFAULT_WEIGHTS.items()),
    )
    router_staleness_s: float = flag(
        0.0,
        "Time between two updates of the router's view of the replicas; 0 for an update before "
        "every request.",
        unit="s",
        least=0,
    )
    reject_long_requests: bool = flag(
        False, "Count requests beyond --max-model-len as rejected instead of refusing the load."
    )
    kv_transfer_bytes_per_s: float = flag(
        25e9,
        "Bandwidth of KV transfers from a prefill server, for traces with the column "
        "transferred_tokens.",
        unit="bytes/s",
        above=0,
        shown="25e9",
    )
    kv_transfer_latency_s: float = flag(
        0.0, "Delay of each KV transfer from a prefill server.", unit="s", least=0
    )
    kv_offloading_size: float | None = flag(
        None,
        "Host memory for KV blocks that are evicted from GPU memory, over all GPUs of a replica.",
        unit="GiB",
        above=0,
        shown="none",
    )
    kv_offloading_backend: str = flag(
        NATIVE, "Software that stores KV blocks in host memory.", allowed=(NATIVE, LMCACHE)
    )
    kv_transfer_config: str = flag(
        "",
        "KV connector of vLLM as a JSON object, such as OffloadingConnector.",
    )
    host_link_bytes_per_s: float | None = flag(
        None,
        "Bandwidth of the link between a GPU and host memory, in one direction.",
        unit="bytes/s",
        above=0,
        shown="the GPU's PCIe",
    )
    host_link_copy_s: float = flag(
        COPY_S,
        "Fixed time of each copy between GPU and host memory, in addition to bytes / bandwidth.",
        unit="s",
        least=0,
    )
    host_link_latency_s: float = flag(
        0.0, "Delay of each transfer between GPU and host memory.", unit="s", least=0
    )
    enable_hierarchical_cache: bool = flag(
        False,
        "Also store KV pages in host memory (SGLang's HiCache).",
        spelled={SGLANG: "enable_hierarchical_cache"},
        engines=(SGLANG,),
    )
    hicache_ratio: float = flag(
        2.0,
        "Size of HiCache's host memory as a multiple of the GPU's KV cache.",
        above=0,
        spelled={SGLANG: "hicache_ratio"},
        engines=(SGLANG,),
    )
    hicache_size: int = flag(
        0,
        "Size of HiCache's host memory for each GPU, in place of --hicache-ratio.",
        unit="GB",
        least=0,
        shown="by --hicache-ratio",
        spelled={SGLANG: "hicache_size"},
        engines=(SGLANG,),
    )
    hicache_write_policy: str = flag(
        WRITE_THROUGH,
        "When HiCache copies a prefix to host memory.",
        allowed=WRITE_POLICIES,
        spelled={SGLANG: "hicache_write_policy"},
        engines=(SGLANG,),
    )
    hicache_io_backend: str = flag(
        KERNEL,
        "How HiCache copies KV pages: by a GPU kernel, or page by page (direct).",
        allowed=IO_BACKENDS,
        spelled={SGLANG: "hicache_io_backend"},
        engines=(SGLANG,),
    )
    hicache_mem_layout: str = flag(
        "",
        "Order of HiCache's KV pages in host memory: layer_first, page_first, page_first_direct, "
        "page_first_kv_split or page_head.",
        shown="the release's",
        allowed=("", *MEM_LAYOUTS),
        spelled={SGLANG: "hicache_mem_layout"},
        engines=(SGLANG,),
    )
    api_server_count: int | None = flag(
        None,
        "Number of API server processes, which take in requests and stream tokens.",
        least=1,
        shown="the data-parallel size",
    )
    v1_multiprocessing: bool = flag(
        True, "Run the engine in a process of its own (VLLM_ENABLE_V1_MULTIPROCESSING)."
    )

    def __post_init__(self) -> None:
        check_flags(self)
        if not self.v1_multiprocessing and (self.api_server_count or 1) > 1:
            raise PinnError(
                f"{self.api_server_count} API servers need an engine in a separate process: omit "
                "--no-v1-multiprocessing or --api-server-count"
            )

        if self.router_weights and self.router != PREFIX_AWARE:
            raise PinnError(
                f"--router-weights needs --router {PREFIX_AWARE}, got --router "
                f"{self.router}: omit one of the two flags"
            )
        read_weights(self.router_weights)

    @property
    def scorer_weights(self) -> dict[str, float]:
        """Return the weight of each score that a prefix-aware router uses to rank servers."""
        return read_weights(self.router_weights)

    @property
    def offloads(self) -> bool:
        """Return whether keys and values are also stored in a second tier, such as host memory."""
        return self.connects or self.enable_hierarchical_cache

    @property
    def connects(self) -> bool:
        """Return whether vLLM accesses the second cache tier through a KV connector."""
        return bool(self.kv_offloading_size or self.kv_transfer_config)

    @property
    def without_tier(self) -> EngineSpec:
        """Return these engine settings without the second KV cache tier, such as host memory."""
        return replace(
            self, kv_offloading_size=None, kv_transfer_config="", enable_hierarchical_cache=False
        )


def api_servers(deployment: Deployment, spec: EngineSpec) -> int:
    """Return the number of API server processes of a deployment."""
    if not spec.v1_multiprocessing:
        return 1
    return spec.api_server_count or deployment.recipe.data_parallel_size
