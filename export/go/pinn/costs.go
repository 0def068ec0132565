package pinn

// Costs are the datasheet costs of a configuration on one GPU: seconds at datasheet rates per unit
// of work, and counts. A tag names the field's column behind "cost.".
type Costs struct {
	Layers                float64 `column:"layers"`                    // Transformer layers
	MoELayers             float64 `column:"moe_layers"`                // layers with routed experts
	QuantizedLayers       float64 `column:"quantized_layers"`          // layers whose activations are quantized by kernels of their own
	LaunchedLayers        float64 `column:"launched_layers"`           // layers weighted by how long their kernels take to launch: experts, latent attention and uncompiled modules count for more
	ParallelLayers        float64 `column:"parallel_layers"`           // layers with a tensor-parallel all-reduce, relative to vLLM's own kernel
	GraphTokens           float64 `column:"graph_tokens"`              // largest captured CUDA graph, in tokens
	GraphRequests         float64 `column:"graph_requests"`            // decodes of the largest captured CUDA graph, where those hold decodes alone; else 0
	WaitsForHost          float64 `column:"waits_for_host"`            // 1 if the GPU waits for the host's work between two steps (no asynchronous scheduling), else 0
	GEMMWeights           float64 `column:"gemm_weights_s"`            // reading every weight but the routed experts' once
	GEMMToken             float64 `column:"gemm_token_s"`              // computing them for one token, without the output head
	HeadSequence          float64 `column:"head_sequence_s"`           // computing the output head for one sequence
	SampledRequest        float64 `column:"sampled_request_s"`         // moving the logits of one request through the sampler's kernels
	SampledStep           float64 `column:"sampled_step_s"`            // running the sampler's kernels in a step whatever its requests
	ActivationToken       float64 `column:"activation_token_s"`        // moving one token through the kernels between the matrix products
	Experts               float64 `column:"experts"`                   // routed experts on this GPU; 0 for a dense model
	ExpertShare           float64 `column:"expert_share"`              // probability that a token uses a given expert: top-k / experts
	ExpertRead            float64 `column:"expert_read_s"`             // reading one of them in every MoE layer
	ExpertToken           float64 `column:"expert_token_s"`            // computing this GPU's share of one token's top-k experts
	ExpertActivationToken float64 `column:"expert_activation_token_s"` // gathering and scattering that share
	ExpertReplicas        float64 `column:"expert_replicas"`           // data-parallel replicas whose tokens share the experts
	KVRead                float64 `column:"kv_read_s"`                 // reading one cached token in layers with full attention
	WindowedKVRead        float64 `column:"windowed_kv_read_s"`        // reading one cached token in windowed layers; a recurrent state counts as one
	DecodePair            float64 `column:"decode_pair_s"`             // attention arithmetic of a decode per key, in full layers
	WindowedDecodePair    float64 `column:"windowed_decode_pair_s"`    // attention arithmetic of a decode per key, in windowed layers
	DecodeAttentionTime   float64 `column:"decode_attention_time"`     // decode attention by the engine's own kernels, relative to vLLM's
	PrefillToken          float64 `column:"prefill_token_s"`           // queries in and outputs out of prefill attention, per token
	PrefillPair           float64 `column:"prefill_pair_s"`            // attention arithmetic of a prefill per pair, in full layers
	WindowedPrefillPair   float64 `column:"windowed_prefill_pair_s"`   // attention arithmetic of a prefill per pair, in windowed layers
	PrefillKey            float64 `column:"prefill_key_s"`             // passing one block of prefill attention over one key, in full layers; 0 where keys are split over blocks
	AllReduces            float64 `column:"all_reduces"`               // all-reduces of a step, relative to vLLM's own kernel; 0 on one GPU
	AllReduceTokenBytes   float64 `column:"all_reduce_token_bytes"`    // message of one of them per token, in bytes
	OneShotBytes          float64 `column:"one_shot_bytes"`            // largest message of a one-shot or fused all-reduce
	AllReduceToken        float64 `column:"all_reduce_token_s"`        // moving one token's all-reduces over the GPU links
	SmallAllReduceToken   float64 `column:"small_all_reduce_token_s"`  // moving one token's small all-reduces, as vLLM's own kernel takes
	ExchangeToken         float64 `column:"exchange_token_s"`          // moving one token to its experts and back between GPUs
	PipelineToken         float64 `column:"pipeline_token_s"`          // handing one token from stage to stage
	Offload               float64 `column:"offload_s"`                 // reading the weights that lie in host memory over PCIe
}
