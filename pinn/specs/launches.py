"""What an engine launches one kernel after the other, where no CUDA graph holds a step."""

from pinn.specs.serving import SGLANG, TRTLLM, VLLM

#: Launches of a layer's latent attention beyond those of vLLM's, in launches of a dense layer.
#: SGLang's module of DeepSeek-V3 takes 0.53 to 0.69 ms (medians) for 16 to 1,024 tokens alike on
#: H100, H200, B200 and B300 (geometric mean 0.59; 0.87 and more behind Grace), so its host is what
#: it waits for (aiconfigurator-core 0.12.0, ``wideep_context_mla_perf`` of sglang 0.5.9 and 0.5.10,
#: 16 heads, fp8 blocks). A dense layer of vLLM takes 0.2 ms (``eager_layer`` of the released
#: checkpoint), so the module is 2.9 of them, of which ``launched_layers`` counts 1.45 already: half
#: a dense layer, 0.8 for what makes attention latent and half the quantization. That servers' hosts
#: launch as fast as the tables' is an assumption.
LATENT_LAUNCHES = {
    VLLM: (0.0, "what others are measured against"),
    SGLANG: (1.5, "sglang 0.5.9 and 0.5.10 in the tables of aiconfigurator-core 0.12.0"),
    TRTLLM: (0.0, "as vLLM's: its timed modules wait for no host"),
}
