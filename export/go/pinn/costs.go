package pinn

// Costs are seconds at datasheet rates per unit of work on one GPU of a configuration; the Python
// class StepCosts explains each.
type Costs struct {
	Layers, MoeLayers, QuantizedLayers, ParallelLayers, GraphTokens float64
	GemmWeights, GemmToken, HeadSequence, SampledRequest            float64
	ActivationToken                                                 float64
	Experts, ExpertShare, ExpertRead, ExpertToken                   float64
	ExpertActivationToken, ExpertReplicas                           float64
	KVRead, WindowedKVRead, DecodePair, WindowedDecodePair          float64
	PrefillToken, PrefillPair, WindowedPrefillPair                  float64
	AllReduces, AllReduceTokenBytes, AllReduceToken                 float64
	ExchangeToken, PipelineToken, Offload                           float64
}

// costNames are the names of the fields in files, each with its place.
var costNames = []struct {
	name  string
	field func(*Costs) *float64
}{
	{"layers", func(c *Costs) *float64 { return &c.Layers }},
	{"moe_layers", func(c *Costs) *float64 { return &c.MoeLayers }},
	{"quantized_layers", func(c *Costs) *float64 { return &c.QuantizedLayers }},
	{"parallel_layers", func(c *Costs) *float64 { return &c.ParallelLayers }},
	{"graph_tokens", func(c *Costs) *float64 { return &c.GraphTokens }},
	{"gemm_weights_s", func(c *Costs) *float64 { return &c.GemmWeights }},
	{"gemm_token_s", func(c *Costs) *float64 { return &c.GemmToken }},
	{"head_sequence_s", func(c *Costs) *float64 { return &c.HeadSequence }},
	{"sampled_request_s", func(c *Costs) *float64 { return &c.SampledRequest }},
	{"activation_token_s", func(c *Costs) *float64 { return &c.ActivationToken }},
	{"experts", func(c *Costs) *float64 { return &c.Experts }},
	{"expert_share", func(c *Costs) *float64 { return &c.ExpertShare }},
	{"expert_read_s", func(c *Costs) *float64 { return &c.ExpertRead }},
	{"expert_token_s", func(c *Costs) *float64 { return &c.ExpertToken }},
	{"expert_activation_token_s", func(c *Costs) *float64 { return &c.ExpertActivationToken }},
	{"expert_replicas", func(c *Costs) *float64 { return &c.ExpertReplicas }},
	{"kv_read_s", func(c *Costs) *float64 { return &c.KVRead }},
	{"windowed_kv_read_s", func(c *Costs) *float64 { return &c.WindowedKVRead }},
	{"decode_pair_s", func(c *Costs) *float64 { return &c.DecodePair }},
	{"windowed_decode_pair_s", func(c *Costs) *float64 { return &c.WindowedDecodePair }},
	{"prefill_token_s", func(c *Costs) *float64 { return &c.PrefillToken }},
	{"prefill_pair_s", func(c *Costs) *float64 { return &c.PrefillPair }},
	{"windowed_prefill_pair_s", func(c *Costs) *float64 { return &c.WindowedPrefillPair }},
	{"all_reduces", func(c *Costs) *float64 { return &c.AllReduces }},
	{"all_reduce_token_bytes", func(c *Costs) *float64 { return &c.AllReduceTokenBytes }},
	{"all_reduce_token_s", func(c *Costs) *float64 { return &c.AllReduceToken }},
	{"exchange_token_s", func(c *Costs) *float64 { return &c.ExchangeToken }},
	{"pipeline_token_s", func(c *Costs) *float64 { return &c.PipelineToken }},
	{"offload_s", func(c *Costs) *float64 { return &c.Offload }},
}
