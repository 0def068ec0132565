"""Logs of starts, worded as in the releases, with values from published logs."""

#: vLLM 0.22.1, gpt-oss-120b on two H200.
VLLM_0_22 = """\
(APIServer pid=1) INFO 06-02 10:00:01 [utils.py:344] \x1b[97;1m█     █     █▄   ▄█\x1b[0m
(APIServer pid=1) INFO 06-02 10:00:01 [utils.py:344]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.22.1
(APIServer pid=1) INFO 06-02 10:00:01 [utils.py:278] non-default args: {'model_tag': \
'openai/gpt-oss-120b', 'max_model_len': 2068, 'tensor_parallel_size': 2, \
'gpu_memory_utilization': 0.9, 'max_num_seqs': 64}
(EngineCore pid=9) INFO 06-02 10:00:09 [core.py:113] Initializing a V1 LLM engine (v0.22.1) with \
config: model='openai/gpt-oss-120b', max_seq_len=2068, tensor_parallel_size=2, seed=0
(Worker_TP0 pid=11) INFO 06-02 10:01:09 [gpu_model_runner.py:5132] Model loading took 34.38 GiB \
memory and 30.512345 seconds
(Worker_TP1 pid=12) INFO 06-02 10:01:30 [gpu_model_runner.py:6365] Estimated CUDA graph memory: \
1.03 GiB total
(Worker_TP0 pid=11) INFO 06-02 10:01:31 [gpu_worker.py:466] Available KV cache memory: 88.77 GiB
(Worker_TP0 pid=11) INFO 06-02 10:01:31 [gpu_worker.py:480] CUDA graph memory profiling is enabled \
(default since v0.21.0). The current --gpu-memory-utilization=0.9000 is equivalent to \
--gpu-memory-utilization=0.8926 without CUDA graph memory profiling.
(EngineCore pid=9) INFO 06-02 10:01:32 [kv_cache_utils.py:1733] GPU KV cache size: 2,560,976 tokens
(EngineCore pid=9) INFO 06-02 10:01:32 [kv_cache_utils.py:1734] Maximum concurrency for 2,068 \
tokens per request: 1238.38x
(Worker_TP0 pid=11) INFO 06-02 10:01:50 [gpu_model_runner.py:6456] Graph capturing finished in 9 \
secs, took 0.98 GiB
(APIServer pid=1) INFO:     Application startup complete.
"""

#: vLLM 0.31.0, Llama-3.1-8B on an A100: one line of tokens and concurrency; weights and other
#: memory outside torch in one value.
VLLM_0_31 = """\
(EngineCore pid=9) INFO 01-02 10:00:09 [core.py:130] Initializing a V1 LLM engine (v0.31.0) with \
config: model='meta-llama/Llama-3.1-8B-Instruct', tensor_parallel_size=1, seed=0
(EngineCore pid=9) INFO 01-02 10:00:29 [gpu_model_runner.py:5354] Model loading took 15.0 GiB \
memory and 4.100000 seconds
(EngineCore pid=9) INFO 01-02 10:00:40 [gpu_worker.py:692] Available KV cache memory: 56.21 GiB
(EngineCore pid=9) INFO 01-02 10:00:41 [kv_cache_utils.py:2464] GPU KV cache size: 460,496 tokens, \
Maximum concurrency for 131,072 tokens per request: 3.51x
(EngineCore pid=9) INFO 01-02 10:00:49 [gpu_model_runner.py:6854] Graph capturing finished in 5 \
secs, took 0.23 GiB
(EngineCore pid=9) INFO 01-02 10:00:49 [gpu_worker.py:955] Free memory on device cuda:0 \
(78.66/79.25 GiB) on startup. Desired GPU memory utilization is (0.92, 72.91 GiB). Actual usage is \
15.26 GiB for consumed memory (weights + non-torch), 1.44 GiB for peak activation, and 0.23 GiB \
for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=60003000000` \
(55.88 GiB) to fit into requested memory, or `--kv-cache-memory=66003000000` (61.47 GiB) to fully \
utilize gpu memory. Current kv cache memory in use is 56.21 GiB.
"""


def vllm_0_10(least: str = "10.65") -> str:
    """Return a log of vLLM 0.10.2, Qwen3-235B on eight L40S: one line per rank and cache."""
    ranks = [
        f"""\
(Worker_TP{rank} pid={rank}) INFO 09-20 10:01:09 [gpu_model_runner.py:2392] Model loading took \
27.7200 GiB and 60.000000 seconds
(Worker_TP{rank} pid={rank}) INFO 09-20 10:01:30 [gpu_worker.py:298] Available KV cache memory: \
{least if rank == 5 else "10.71"} GiB
(EngineCore_0 pid=9) INFO 09-20 10:01:31 [kv_cache_utils.py:864] GPU KV cache size: \
{"238,208" if rank == 5 else "239,520"} tokens
(EngineCore_0 pid=9) INFO 09-20 10:01:31 [kv_cache_utils.py:868] Maximum concurrency for 32,768 \
tokens per request: {"7.27" if rank == 5 else "7.31"}x
(Worker_TP{rank} pid={rank}) INFO 09-20 10:02:30 [gpu_worker.py:391] Free memory on device \
(43.9/44.42 GiB) on startup. Desired GPU memory utilization is (0.9, 39.98 GiB). Actual usage is \
27.72 GiB for weight, 1.4 GiB for peak activation, 0.21 GiB for non-torch memory, and 3.45 GiB for \
CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=7400000000` to fit \
into requested memory, or `--kv-cache-memory=11600000000` to fully utilize gpu memory. Current kv \
cache memory in use is {11435350425 if rank == 5 else 11500000000} bytes.
"""
        for rank in range(8)
    ]
    return (
        "(APIServer pid=1) INFO 09-20 10:00:01 [api_server.py:1896] vLLM API server version "
        "0.10.2\n"
        "(APIServer pid=1) INFO 09-20 10:00:01 [utils.py:328] non-default args: "
        "{'tensor_parallel_size': 8}\n" + "".join(ranks)
    )


#: vLLM 0.12.0, DeepSeek-R1 on eight H200; only the first rank writes.
VLLM_0_12 = """\
(Worker_TP0 pid=11) INFO 12-02 10:01:09 [gpu_model_runner.py:3549] Model loading took 79.7400 GiB \
memory and 90.500000 seconds
(Worker_TP0 pid=11) INFO 12-02 10:02:31 [gpu_worker.py:355] Available KV cache memory: 41.60 GiB
(EngineCore pid=9) INFO 12-02 10:02:32 [kv_cache_utils.py:1291] GPU KV cache size: 635,648 tokens
(EngineCore pid=9) INFO 12-02 10:02:32 [kv_cache_utils.py:1296] Maximum concurrency for 8,192 \
tokens per request: 77.59x
(Worker_TP0 pid=11) INFO 12-02 10:02:50 [gpu_model_runner.py:4450] Graph capturing finished in 7 \
secs, took 0.51 GiB
"""

#: vLLM 0.6.5, Meta-Llama-3-8B on an H100: the V0 engine.
VLLM_0_6 = """\
INFO 12-20 10:00:01 llm_engine.py:234] Initializing an LLM engine (v0.6.5) with config: \
model='meta-llama/Meta-Llama-3-8B', tensor_parallel_size=1
INFO 12-20 10:00:09 model_runner.py:1077] Loading model weights took 14.9600 GB
INFO 12-20 10:00:12 worker.py:241] Memory profiling takes 0.61 seconds
INFO 12-20 10:00:12 worker.py:241] the current vLLM instance can use total_gpu_memory (79.22GiB) x \
gpu_memory_utilization (0.90) = 71.30GiB
INFO 12-20 10:00:12 worker.py:241] model weights take 14.96GiB; non_torch_memory takes 1.79GiB; \
PyTorch activation peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is \
53.29GiB.
INFO 12-20 10:00:13 gpu_executor.py:76] # GPU blocks: 27284, # CPU blocks: 2048
INFO 12-20 10:00:13 gpu_executor.py:80] Maximum concurrency for 8192 tokens per request: 53.29x
"""

#: SGLang 0.5.12, DeepSeek-R1 on eight H200; the second rank has less room.
SGLANG_0_5 = """\
[2026-05-01 10:00:00] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-R1', \
mem_fraction_static=0.82, max_running_requests=512, chunked_prefill_size=32768, tp_size=8)
[2026-05-01 10:00:09 TP0] Init torch distributed ends. elapsed=9.10 s, mem usage=1.61 GB
[2026-05-01 10:00:10 TP0] Load weight begin. avail mem=138.02 GB
[2026-05-01 10:00:10 TP1] Load weight begin. avail mem=138.11 GB
[2026-05-01 10:01:10 TP0] Load weight end. elapsed=60.02 s, type=DeepseekV3ForCausalLM, \
avail mem=58.22 GB, mem usage=79.80 GB.
[2026-05-01 10:01:10 TP1] Load weight end. elapsed=60.02 s, type=DeepseekV3ForCausalLM, \
avail mem=58.31 GB, mem usage=79.80 GB.
[2026-05-01 10:01:11 TP0] KV Cache is allocated. #tokens: 509157, KV size: 33.33 GB
[2026-05-01 10:01:11 TP1] KV Cache is allocated. #tokens: 509157, KV size: 33.32 GB
[2026-05-01 10:01:11 TP0] Memory pool end. avail mem=24.12 GB
[2026-05-01 10:01:12 TP0] Capture cuda graph begin. This can take up to several minutes. \
avail mem=23.70 GB
[2026-05-01 10:01:40 TP0] Capture cuda graph end. Time elapsed: 28.30 s. mem usage=0.81 GB. \
avail mem=22.89 GB.
[2026-05-01 10:01:50 TP0] Capture piecewise CUDA graph end. Time elapsed: 9.30 s. mem usage=1.04 \
GB. avail mem=21.85 GB.
[2026-05-01 10:01:51 TP0] max_total_num_tokens=509157, chunked_prefill_size=32768, \
max_prefill_tokens=16384, max_running_requests=512, context_len=163840, available_gpu_mem=21.85 GB
[2026-05-01 10:01:59] The server is fired up and ready to roll!
"""

#: SGLang 0.4.1, Llama-3.1-8B on an H100: keys and values apart, without their tokens.
SGLANG_0_4 = """\
[2025-01-01 10:00:00 TP0] Load weight begin. avail mem=78.81 GB
[2025-01-01 10:00:05 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, \
avail mem=63.72 GB
[2025-01-01 10:00:05 TP0] KV Cache is allocated. K size: 27.13 GB, V size: 27.13 GB.
[2025-01-01 10:00:05 TP0] Memory pool end. avail mem=8.34 GB
[2025-01-01 10:00:09 TP0] max_total_num_tokens=444500, max_prefill_tokens=16384, \
max_running_requests=2049, context_len=131072
"""

#: SGLang 0.5.23 with graphs before the cache: the pool before them is an upper bound.
SGLANG_AFTER_GRAPHS = """\
[2026-09-01 10:00:00] server_args={'model_path': 'meta-llama/Llama-3.1-8B', 'tp_size': 1, \
'mem_fraction_static': 0.88}
[2026-09-01 10:00:10] Load weight begin. avail mem=78.81 GB
[2026-09-01 10:00:15] Load weight end. elapsed=4.02 s, type=LlamaForCausalLM, avail mem=63.72 GB, \
mem usage=15.09 GB.
[2026-09-01 10:00:16] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 500000, K size: \
30.52 GB, V size: 30.52 GB
[2026-09-01 10:00:20] Capture target decode CUDA graph end. bs=[1, 2], elapsed=4.00 s, \
mem usage=0.31 GB, avail mem=62.00 GB.
[2026-09-01 10:00:25] Capture target prefill CUDA graph end. elapsed=5.00 s, mem usage=0.20 GB, \
avail mem=61.80 GB.
[2026-09-01 10:00:26] Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: \
444500, KV size: 54.26 GB, avail mem=8.00 GB
[2026-09-01 10:00:27] max_total_num_tokens=444500, chunked_prefill_size=8192, \
max_prefill_tokens=16384, max_running_requests=4096, context_len=131072, available_gpu_mem=8.00 GB
"""

#: TensorRT-LLM: a small cache to measure with, then the one that serves.
TRTLLM = """\
[TensorRT-LLM] TensorRT-LLM version: 0.17.0
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.00 GiB for max tokens in paged KV cache (8192).
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 6890
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 26.91 GiB for max tokens in paged KV cache (220480).
"""
