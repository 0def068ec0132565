package pinn

import "math"

// A Feature is a named entry of one of the two registries. The unit is that of its coefficient:
// "1" for a multiplier.
type Feature struct{ Name, Unit string }

// Places of the step features; the Python module pinn.features.step defines each.
const (
	fStep = iota
	fLayer
	fMoeLayer
	fQuantizedLayer
	fParallelLayer
	fEagerLayer
	fPrefillLayer
	fDecodeLayer
	fRequest
	fSampling
	fActivations
	fGemm
	fGemmWeights
	fGemmCompute
	fGemmBeyond128
	fGemmBeyond1024
	fExperts
	fExpertsHit
	fExpertsHitTenth
	fExpertCompute
	fExpertComputeBeyond1024
	fExpertActivations
	fDecodeAttention
	fKVRead
	fPrefillAttention
	fPrefillTokens
	fPrefillKVRead
	fAllReduce
	fAllReduceFirst256k
	fAllReduceFirst8m
	fLargeAllReduce
	fExpertExchange
	fPipeline
	fCPUOffload
	numStepFeatures
)

var stepFeatures = [numStepFeatures]Feature{
	fStep:                    {"step", "s"},
	fLayer:                   {"layer", "s/layer"},
	fMoeLayer:                {"moe_layer", "s/layer"},
	fQuantizedLayer:          {"quantized_layer", "s/layer"},
	fParallelLayer:           {"parallel_layer", "s/layer"},
	fEagerLayer:              {"eager_layer", "s/layer"},
	fPrefillLayer:            {"prefill_layer", "s/layer"},
	fDecodeLayer:             {"decode_layer", "s/layer"},
	fRequest:                 {"request", "s/request"},
	fSampling:                {"sampling", "1"},
	fActivations:             {"activations", "1"},
	fGemm:                    {"gemm", "1"},
	fGemmWeights:             {"gemm_weights", "1"},
	fGemmCompute:             {"gemm_compute", "1"},
	fGemmBeyond128:           {"gemm_beyond_128", "1"},
	fGemmBeyond1024:          {"gemm_beyond_1024", "1"},
	fExperts:                 {"experts", "1"},
	fExpertsHit:              {"experts_hit", "1"},
	fExpertsHitTenth:         {"experts_hit_tenth", "1"},
	fExpertCompute:           {"expert_compute", "1"},
	fExpertComputeBeyond1024: {"expert_compute_beyond_1024", "1"},
	fExpertActivations:       {"expert_activations", "1"},
	fDecodeAttention:         {"decode_attention", "1"},
	fKVRead:                  {"kv_read", "1"},
	fPrefillAttention:        {"prefill_attention", "1"},
	fPrefillTokens:           {"prefill_tokens", "1"},
	fPrefillKVRead:           {"prefill_kv_read", "1"},
	fAllReduce:               {"all_reduce", "1"},
	fAllReduceFirst256k:      {"all_reduce_first_256k", "1"},
	fAllReduceFirst8m:        {"all_reduce_first_8m", "1"},
	fLargeAllReduce:          {"large_all_reduce", "s"},
	fExpertExchange:          {"expert_exchange", "1"},
	fPipeline:                {"pipeline", "1"},
	fCPUOffload:              {"cpu_offload", "1"},
}

// StepFeatures lists the step features that this package implements, in the order of
// [Model.Features].
func StepFeatures() []Feature { return append([]Feature(nil), stepFeatures[:]...) }

const (
	kib256 = 1 << 18
	mib8   = 1 << 23

	// keptMisses is how many values of missTenth a model keeps, since most steps have few tokens
	// and an exponential takes long.
	keptMisses = 2048
)

// costConstants are costs with what else does not change from step to step.
type costConstants struct {
	Costs
	topKRead    float64   // reading the experts that one token needs
	allRead     float64   // reading every expert
	missLog     float64   // logarithm of the chance that a token does not use a given expert
	missTenths  []float64 // missTenth of small numbers of tokens
	first256k   float64   // tokens whose all-reduce message has 256 KiB
	first8m     float64   // and 8 MiB
	communicate bool
}

func (c Costs) constants() costConstants {
	k := costConstants{
		Costs:       c,
		topKRead:    c.Experts * c.ExpertShare * c.ExpertRead,
		allRead:     c.Experts * c.ExpertRead,
		missLog:     math.Log(1 - c.ExpertShare),
		first256k:   kib256 / c.AllReduceTokenBytes,
		first8m:     mib8 / c.AllReduceTokenBytes,
		communicate: c.AllReduceToken > 0 || c.AllReduces > 0,
	}
	if c.Experts > 0 {
		missTenths := make([]float64, keptMisses)
		for tokens := range missTenths {
			missTenths[tokens] = k.missTenth(float64(tokens))
		}
		k.missTenths = missTenths
	}
	return k
}

// missTenth is the chance that a tenth of the tokens, each by itself, do not use a given expert.
func (c *costConstants) missTenth(tokens float64) float64 {
	if i := int(tokens); i >= 0 && i < len(c.missTenths) && float64(i) == tokens {
		return c.missTenths[i]
	}
	return math.Exp(0.1 * tokens * c.missLog)
}

// stepValues writes the features of one batch into zeros: seconds at datasheet rates, or counts.
func stepValues(c *costConstants, s *Sums, f *[numStepFeatures]float64) {
	prefills, decodes := float64(s.PrefillRequests), float64(s.DecodeRequests)
	prefillTokens := float64(s.PrefillTokens)
	tokens, requests := prefillTokens+decodes, prefills+decodes
	f[fRequest], f[fSampling] = requests, c.SampledRequest*requests
	if prefills > 0 {
		f[fPrefillLayer] = c.Layers
		prefillValues(c, s, f)
		f[fPrefillTokens] = c.PrefillToken * prefillTokens
		f[fEagerLayer] = c.Layers * min(prefillTokens/max(c.GraphTokens, 1), 1)
	}
	if decodes > 0 {
		f[fDecodeLayer] = c.Layers
		decodeValues(c, s, f)
	}
	f[fGemmCompute] = c.GemmToken*tokens + c.HeadSequence*requests
	f[fGemm] = f[fGemmCompute]
	if tokens == 0 {
		return
	}
	f[fStep], f[fLayer], f[fMoeLayer] = 1, c.Layers, c.MoeLayers
	f[fQuantizedLayer], f[fParallelLayer] = c.QuantizedLayers, c.ParallelLayers
	f[fCPUOffload] = c.Offload
	if c.GraphTokens == 0 {
		f[fEagerLayer] = c.Layers
	}
	f[fActivations] = c.ActivationToken * tokens
	f[fGemm] = max(c.GemmWeights, f[fGemmCompute])
	f[fGemmWeights] = c.GemmWeights
	f[fGemmBeyond128] = c.GemmToken * max(tokens-128, 0)
	f[fGemmBeyond1024] = c.GemmToken * max(tokens-1024, 0)
	f[fExpertExchange] = c.ExchangeToken * tokens
	f[fPipeline] = c.PipelineToken * tokens
	if c.communicate {
		linkValues(c, tokens, f)
	}
	if c.Experts > 0 {
		expertValues(c, tokens*c.ExpertReplicas, f)
	}
}

func prefillValues(c *costConstants, s *Sums, f *[numStepFeatures]float64) {
	read := c.KVRead * float64(s.PrefillCached)
	compute := c.PrefillPair * float64(s.PrefillPairs)
	if s.window != 0 {
		read += c.WindowedKVRead * float64(s.WindowedPrefillCached)
		compute += c.WindowedPrefillPair * float64(s.WindowedPrefillPairs)
	}
	f[fPrefillAttention], f[fPrefillKVRead] = max(read, compute), read
}

func decodeValues(c *costConstants, s *Sums, f *[numStepFeatures]float64) {
	read := c.KVRead * float64(s.DecodeContext)
	compute := c.DecodePair * float64(s.DecodeContext)
	if s.window != 0 {
		read += c.WindowedKVRead * float64(s.WindowedDecodeContext)
		compute += c.WindowedDecodePair * float64(s.WindowedDecodeContext)
	}
	f[fDecodeAttention], f[fKVRead] = max(read, compute), read
}

func linkValues(c *costConstants, tokens float64, f *[numStepFeatures]float64) {
	f[fAllReduce] = c.AllReduceToken * tokens
	f[fAllReduceFirst256k] = c.AllReduceToken * min(tokens, c.first256k)
	f[fAllReduceFirst8m] = c.AllReduceToken * min(tokens, c.first8m)
	if c.AllReduceTokenBytes*tokens > kib256 {
		f[fLargeAllReduce] = c.AllReduces
	}
}

// expertValues takes the tokens of all data-parallel replicas, at least one. The chance that an
// expert is missed by all of them is the tenth power of that for a tenth of them.
func expertValues(c *costConstants, tokens float64, f *[numStepFeatures]float64) {
	missTenth := c.missTenth(tokens)
	square := missTenth * missTenth
	miss := square * square
	miss *= miss * square
	f[fExpertCompute] = c.ExpertToken * tokens
	f[fExperts] = max(c.topKRead, f[fExpertCompute])
	f[fExpertsHit] = max(c.allRead*(1-miss)-c.topKRead, 0)
	f[fExpertsHitTenth] = max(c.allRead*(1-missTenth)-c.topKRead, 0)
	f[fExpertComputeBeyond1024] = c.ExpertToken * max(tokens-1024, 0)
	f[fExpertActivations] = c.ExpertActivationToken * tokens
}

// seconds is the dot product of a coefficient vector and features, in four strands that the
// processor works on side by side.
func seconds(beta, f *[numStepFeatures]float64) float64 {
	var a, b, c, d float64
	i := 0
	for ; i+4 <= numStepFeatures; i += 4 {
		a += beta[i] * f[i]
		b += beta[i+1] * f[i+1]
		c += beta[i+2] * f[i+2]
		d += beta[i+3] * f[i+3]
	}
	for ; i < numStepFeatures; i++ {
		a += beta[i] * f[i]
	}
	return (a + b) + (c + d)
}

// microseconds rounds half to even; what is not in the range of int64 is cut to it.
func microseconds(s float64) int64 {
	us := math.RoundToEven(s * 1e6)
	switch {
	case us >= math.MaxInt64:
		return math.MaxInt64
	case us > 0:
		return int64(us)
	}
	return 0
}
