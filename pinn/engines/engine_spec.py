"""Engine settings that decide the schedule but not the coefficients."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pinn.engines.deployment import Deployment
from pinn.engines.recipe import LEAST_LOADED, ROUND_ROBIN
from pinn.engines.routers import DEFAULT_WEIGHTS, PREFIX_AWARE, ROUTERS, read_weights
from pinn.errors import PinnError
from pinn.specs.flags import check_flags, flag
from pinn.specs.serving import SGLANG, TRTLLM

ROUTINGS = (LEAST_LOADED, ROUND_ROBIN)
#: Stores of keys and values in host memory.
NATIVE, LMCACHE = "native", "lmcache"
#: Times at which SGLang's HiCache stores a prefix: once computed, once used again, or when it
#: leaves the GPU (sglang 0.5.3 to 0.5.23 server_args.py, like the choices below).
WRITE_POLICIES = (WRITE_THROUGH, WRITE_SELECTIVE, WRITE_BACK) = (
    "write_through", "write_through_selective", "write_back",
)  # fmt: skip
IO_BACKENDS = (KERNEL, DIRECT) = ("kernel", "direct")
MEM_LAYOUTS = (
    "layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head",
)  # fmt: skip
#: Bytes at PCIe rate that correspond to the overhead of one small copy. Separate copies of up to
#: 28 KiB are slower than one kernel that fills an H100's PCIe link (vllm 0.33.0
#: v1/kv_offload/cpu/swap_blocks_triton.py: THRESHOLD_BYTES), so each is taken to cost as much time
#: as 28 KiB at 64 GB/s.
COPY_S = 4.5e-7


@dataclass(frozen=True)
class EngineSpec:
    """Flags beside those of ``ServingSpec``; each has vLLM's name and default, or SGLang's.

    vLLM has no flag for ``activation_reserve_bytes`` (it measures it at start, in place of the
    estimate of ``pinn.memory``), ``replicas`` (servers of their own, among which a load
    balancer chooses as among data-parallel ranks), ``data_parallel_routing`` (``round_robin`` is an
    external load balancer's), ``router`` and what goes with it (``pinn.engines.routers``),
    ``kv_transfer_*`` and ``reject_long_requests`` (without it the workload is refused).
    ``api_server_count`` None means one for each data-parallel rank
    (``vllm/entrypoints/cli/serve.py``); without ``v1_multiprocessing`` there is one only.
    """

    async_scheduling: bool | None = flag(
        None,
        "Plan a batch ahead.",
        shown="the engine's",
        spelled={SGLANG: "no_disable_overlap_schedule", TRTLLM: "no_disable_overlap_scheduler"},
    )
    long_prefill_token_threshold: int = flag(
        0, "Longest chunk of a prompt per step.", unit="tokens", least=0, shown="no limit"
    )
    num_gpu_blocks_override: int | None = flag(
        None,
        "KV blocks of one replica.",
        least=2,
        shown="what fits",
        remedy="one is vLLM's null block",
    )
    kv_cache_memory_bytes: float | None = flag(
        None, "KV cache on each GPU.", unit="bytes", least=0, shown="the rest"
    )
    activation_reserve_bytes: float | None = flag(
        None,
        "Memory on each GPU beside weights and KV cache; vLLM measures it.",
        unit="bytes",
        least=0,
        shown="estimate",
    )
    replicas: int = flag(1, "Servers alike that share the load.", least=1)
    data_parallel_routing: str | None = flag(
        None, "Which server and rank gets a request.", shown="the engine's", allowed=ROUTINGS
    )
    router: str | None = flag(
        None,
        "Rule by which a router sends requests to --replicas, before an engine spreads them over "
        "its ranks.",
        shown="--data-parallel-routing of all ranks",
        allowed=ROUTERS,
    )
    router_weights: str = flag(
        "",
        "Scores that --router prefix-aware adds up, with their weights.",
        shown=",".join(f"{name}={weight:g}" for name, weight in DEFAULT_WEIGHTS.items()),
    )
    router_staleness_s: float = flag(
        0.0,
        "How often the router learns of the replicas; 0 for at every request.",
        unit="s",
        least=0,
    )
    reject_long_requests: bool = flag(
        False, "Count requests beyond --max-model-len as rejected, as a server does."
    )
    kv_transfer_bytes_per_s: float = flag(
        25e9,
        "Rate of keys and values from a prefill server (column transferred_tokens of a trace).",
        unit="bytes/s",
        above=0,
        shown="25e9",
    )
    kv_transfer_latency_s: float = flag(0.0, "Delay of each such transfer.", unit="s", least=0)
    kv_offloading_size: float | None = flag(
        None,
        "Host memory for keys and values that leave the GPU's cache, of all GPUs of a replica.",
        unit="GiB",
        above=0,
        shown="none",
    )
    kv_offloading_backend: str = flag(NATIVE, "What keeps them there.", allowed=(NATIVE, LMCACHE))
    kv_transfer_config: str = flag(
        "", "vLLM's JSON object of a connector, such as OffloadingConnector."
    )
    host_link_bytes_per_s: float | None = flag(
        None,
        "Rate of a GPU's link to the host in one direction.",
        unit="bytes/s",
        above=0,
        shown="the GPU's PCIe",
    )
    host_link_copy_s: float = flag(
        COPY_S, "Time of each copy on that link besides its bytes.", unit="s", least=0
    )
    host_link_latency_s: float = flag(
        0.0, "Delay of each transfer on that link.", unit="s", least=0
    )
    enable_hierarchical_cache: bool = flag(
        False,
        "Store keys and values in host memory, too (SGLang's HiCache).",
        spelled={SGLANG: "enable_hierarchical_cache"},
        engines=(SGLANG,),
    )
    hicache_ratio: float = flag(
        2.0,
        "Size of that memory, in sizes of the GPU's KV cache.",
        above=0,
        spelled={SGLANG: "hicache_ratio"},
        engines=(SGLANG,),
    )
    hicache_size: int = flag(
        0,
        "Size of that memory for each GPU, in place of the ratio.",
        unit="GB",
        least=0,
        shown="by the ratio",
        spelled={SGLANG: "hicache_size"},
        engines=(SGLANG,),
    )
    hicache_write_policy: str = flag(
        WRITE_THROUGH,
        "When a prefix is stored there.",
        allowed=WRITE_POLICIES,
        spelled={SGLANG: "hicache_write_policy"},
        engines=(SGLANG,),
    )
    hicache_io_backend: str = flag(
        KERNEL,
        "How it is copied: by a kernel, or page by page.",
        allowed=IO_BACKENDS,
        spelled={SGLANG: "hicache_io_backend"},
        engines=(SGLANG,),
    )
    hicache_mem_layout: str = flag(
        "",
        "Order of keys and values in that memory: layer_first, page_first, page_first_direct, "
        "page_first_kv_split or page_head.",
        shown="the release's",
        allowed=("", *MEM_LAYOUTS),
        spelled={SGLANG: "hicache_mem_layout"},
        engines=(SGLANG,),
    )
    api_server_count: int | None = flag(
        None,
        "Processes that take requests in and stream tokens.",
        least=1,
        shown="data-parallel size",
    )
    v1_multiprocessing: bool = flag(
        True, "Whether the engine has a process of its own (VLLM_ENABLE_V1_MULTIPROCESSING)."
    )

    def __post_init__(self) -> None:
        check_flags(self)
        if not self.v1_multiprocessing and (self.api_server_count or 1) > 1:
            fault = f"{self.api_server_count} API servers need an engine in a process of its own"
            raise PinnError(f"{fault}: leave --no-v1-multiprocessing or --api-server-count out")

        if self.router_weights and self.router != PREFIX_AWARE:
            raise PinnError(
                f"--router-weights are of --router {PREFIX_AWARE}, got --router {self.router}: "
                "leave one out"
            )
        read_weights(self.router_weights)

    @property
    def scorer_weights(self) -> dict[str, float]:
        """Return the weight of each scorer of a prefix-aware router."""
        return read_weights(self.router_weights)

    @property
    def offloads(self) -> bool:
        """Return whether keys and values have a second tier."""
        return self.connects or self.enable_hierarchical_cache

    @property
    def connects(self) -> bool:
        """Return whether the second tier is one of vLLM's connectors."""
        return bool(self.kv_offloading_size or self.kv_transfer_config)

    @property
    def without_tier(self) -> EngineSpec:
        """Return the settings without a second tier of KV."""
        return replace(
            self, kv_offloading_size=None, kv_transfer_config="", enable_hierarchical_cache=False
        )


def api_servers(deployment: Deployment, spec: EngineSpec) -> int:
    """Return the number of API server processes of a deployment."""
    if not spec.v1_multiprocessing:
        return 1
    return spec.api_server_count or deployment.recipe.data_parallel_size
