"""What SGLang runs beyond what one flag says: its schedule, memory and CUDA graphs."""

from __future__ import annotations

from pinn.errors import PinnError
from pinn.specs.graph_sizes import contiguous_sizes, sglang_sizes
from pinn.specs.recipe import (
    ALL_TO_ALL,
    DEFAULT,
    ESTIMATE,
    GATHER,
    PREFILL_FIRST,
    ROUND_ROBIN,
    STATIC,
)
from pinn.specs.recipe_fields import RecipeFields
from pinn.specs.serving import DEEPEP
from pinn.units import GIB, MIB

#: Share of an output that SGLang expects at first (0.5.9 environ.py: SGLANG_INIT_NEW_TOKEN_RATIO),
#: and what attention data parallelism makes of it (server_args.py: _handle_data_parallelism).
_EXPECTED_SHARE, _EXPECTED_SHARE_OF_DP = 0.7, 0.3


def settle_sglang(found: RecipeFields) -> None:
    """``sglang/srt/managers/scheduler.py`` and ``schedule_policy.py`` of 0.5.9."""
    serving, values = found.serving, found.values
    source = "sglang 0.5.9 managers/scheduler.py: get_next_batch_to_run"
    adder = "sglang 0.5.9 managers/schedule_policy.py: PrefillAdder"
    replicas = values["data_parallel_size"]
    # server_args.py: _handle_data_parallelism; model_runner.py: max_running_requests.
    values["token_budget"] = max(values["token_budget"] // replicas, 1)
    if serving.max_num_seqs is not None:
        values["max_requests"] = max(values["max_requests"] // replicas, 1)
    found.put("schedule", PREFILL_FIRST, source)
    found.take("prompt_budget", "max_prefill_tokens")
    found.put("chunk_multiple", values["block_tokens"], adder)
    found.put("admission", ESTIMATE, adder)
    share = _EXPECTED_SHARE * (_EXPECTED_SHARE_OF_DP if serving.enable_dp_attention else 1.0)
    found.put("admission_share", min(share * serving.schedule_conservativeness, 1.0), adder)
    found.take("poll_interval", "scheduler_recv_interval")
    if values["poll_interval"] > 1 and serving.enable_dp_attention:
        raise PinnError(
            "sglang refuses --scheduler-recv-interval with --enable-dp-attention: leave one out"
        )
    found.put("routing", ROUND_ROBIN, "sglang 0.5.9 server_args.py: _handle_load_balance_method")
    found.take(
        "expert_exchange", "moe_a2a_backend", {"none": GATHER, DEEPEP: ALL_TO_ALL}.__getitem__
    )
    if serving.enable_dp_attention:
        found.put("fused_all_reduce", False, "sglang 0.5.9: not with attention data parallelism")
    limit, origin = found.look_up("max_cudagraph_capture_size")
    padded = found.look_up("cudagraph_padding")[0]
    sizes = sglang_sizes(limit) if padded else contiguous_sizes(limit)
    found.put_graphs(1, limit, sizes, origin)
    _put_static_share(found, limit)


def _put_static_share(found: RecipeFields, graphs: int) -> None:
    """What SGLang reserves (0.5.9 server_args.py: _handle_gpu_memory_settings), in MiB."""
    serving = found.serving
    if serving.gpu_memory_utilization is not None:
        found.take("memory_share", "gpu_memory_utilization")
    else:
        total, replicas = found.gpu.memory_bytes / MIB, found.values["data_parallel_size"]
        chunk = found.look_up("max_num_batched_tokens")[0]
        gpus = serving.tensor_parallel_size * serving.pipeline_parallel_size
        reserve = 512 + max(chunk, 2048) * 1.5 + graphs * 2 + gpus / 8 * 1024
        if serving.enable_dp_attention:
            reserve += graphs * replicas * (4.5 if graphs > 300 else 3)
        if found.gpu.memory_bytes > 60 * GIB:
            reserve = max(reserve, 10 * 1024)
        share = round((total - reserve) / total, 3)
        source = "sglang 0.5.9 server_args.py: _handle_gpu_memory_settings"
        found.put("memory_share", share, source, DEFAULT)
    found.put("memory_share_of", STATIC, "sglang 0.5.9 model_runner.py: profile_max_num_token")
