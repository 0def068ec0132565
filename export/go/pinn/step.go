package pinn

import "math"

const (
	tileTokens     = 128     // rows of a usual tile of a matrix product
	waveTokens     = 1024    // tokens from which waves of tiles fill the GPU
	fewTokensShare = 0.1     // share of a step's tokens whose experts skewed routing reads
	oneShotBytes   = 1 << 18 // largest message of vLLM's one-shot all-reduce
	customBytes    = 1 << 23 // largest message of vLLM's own all-reduce
	pieces         = 0.41    // share of a layer's launches that pieces of graphs leave to a step with prompts
	hiddenStep     = 2.5     // host work of a step that asynchronous scheduling hides, in units of beta
	hiddenRequest  = 6       // the same of each request
	ramp           = 8       // 1 / how far beyond the captured size all layers are launched one by one
)

// keptTokens is the number of tokens below which a pass keeps the seconds of each number.
const keptTokens = 8193

// pass times passes of batches through the layers of a model. It does not change once made.
type pass struct {
	costs     Costs
	beta      StepValues
	logMissed float64   // logarithm of the probability that a token does not use an expert
	byTokens  []float64 // tokenSeconds of 0, 1, ... tokens, as far as they are kept
}

func newPass(costs Costs, beta StepValues, kept int) *pass {
	p := &pass{costs: costs, beta: beta, logMissed: math.Log(1 - costs.ExpertShare)}
	byTokens := make([]float64, kept)
	for tokens := range byTokens {
		byTokens[tokens] = p.tokenSeconds(float64(tokens))
	}
	p.byTokens = byTokens
	return p
}

// launching returns the seconds of launching kernels outside of CUDA graphs, which goes on while the
// GPU works.
func (p *pass) launching(s *Sums) float64 {
	return p.beta.LaunchedLayer * p.costs.LaunchedLayers * p.costs.launchedShare(s)
}

// gpu returns the seconds of the GPU's work: the sum of beta times the features of a batch, without
// launching and the host's.
func (p *pass) gpu(s *Sums) float64 {
	tokens := s.rows()
	if uint64(tokens) < uint64(len(p.byTokens)) {
		return p.byTokens[tokens] + p.requestSeconds(s)
	}
	return p.tokenSeconds(float64(tokens)) + p.requestSeconds(s)
}

// tokenSeconds returns the part of the sum that the number of tokens alone decides.
func (p *pass) tokenSeconds(tokens float64) float64 {
	b, c := &p.beta, &p.costs
	if tokens <= 0 {
		return 0
	}
	once := b.Layer*c.Layers + b.MoELayer*c.MoELayers + b.QuantizedLayer*c.QuantizedLayers +
		b.ParallelLayer*c.ParallelLayers + b.Sampling*c.SampledStep + b.GEMMWeights*c.GEMMWeights +
		b.CPUOffload*c.Offload
	perToken := b.Activations*c.ActivationToken + b.GEMMCompute*c.GEMMToken +
		b.AllReduce*c.AllReduceToken + b.ExpertExchange*c.ExchangeToken + b.Pipeline*c.PipelineToken
	gemm := c.GEMMToken * (b.GEMMBeyond128*larger(tokens-tileTokens, 0) +
		b.GEMMBeyond1024*larger(tokens-waveTokens, 0))
	messages := c.SmallAllReduceToken *
		(b.AllReduceFirst256K*smaller(tokens, oneShotBytes/c.AllReduceTokenBytes) +
			b.AllReduceFirst8M*smaller(tokens, customBytes/c.AllReduceTokenBytes))
	if c.AllReduceTokenBytes*tokens > c.OneShotBytes {
		messages += b.LargeAllReduce * c.AllReduces
	}
	return once + perToken*tokens + gemm + messages + p.expertSeconds(tokens*c.ExpertReplicas)
}

// expertSeconds returns the part of routed experts that see so many tokens.
func (p *pass) expertSeconds(tokens float64) float64 {
	b, c := &p.beta, &p.costs
	if c.Experts == 0 {
		return 0
	}
	topKRead := c.Experts * c.ExpertShare * c.ExpertRead
	// hitRead returns the seconds of reading the experts that a number of tokens hits.
	hitRead := func(tokens float64) float64 {
		return c.Experts * (1 - math.Exp(p.logMissed*tokens)) * c.ExpertRead
	}
	return b.Experts*larger(topKRead, c.ExpertToken*tokens) +
		b.ExpertsHit*larger(hitRead(tokens)-topKRead, 0) +
		b.ExpertsHitTenth*larger(hitRead(tokens*fewTokensShare)-topKRead, 0) +
		b.ExpertCompute*c.ExpertToken*tokens +
		b.ExpertComputeBeyond1024*c.ExpertToken*larger(tokens-waveTokens, 0) +
		b.ExpertActivations*c.ExpertActivationToken*tokens
}

// requestSeconds returns the part of the sum that depends on the requests.
func (p *pass) requestSeconds(s *Sums) float64 {
	b, c := &p.beta, &p.costs
	tokens := float64(s.rows())
	requests := float64(s.PrefillRequests + s.DecodeRequests)
	perRequest := b.Sampling*c.SampledRequest + b.GEMMCompute*c.HeadSequence
	gemm := c.GEMMToken*tokens + c.HeadSequence*requests
	if tokens > 0 {
		gemm = larger(gemm, c.GEMMWeights)
	}
	total := perRequest*requests + b.GEMM*gemm + b.PrefillTokens*c.PrefillToken*float64(s.PrefillTokens)
	if s.DecodeRequests > 0 {
		context, near := float64(s.DecodeContext), float64(s.WindowedDecodeContext)
		read := c.KVRead*context + c.WindowedKVRead*near
		pairs := c.DecodePair*context + c.WindowedDecodePair*near
		total += c.DecodeAttentionTime *
			(b.DecodeLayer*c.Layers + b.KVRead*read + b.DecodeAttention*larger(read, pairs))
	}
	if s.PrefillRequests > 0 {
		read := c.KVRead*float64(s.PrefillCached) + c.WindowedKVRead*float64(s.WindowedPrefillCached)
		pairs := c.PrefillPair*float64(s.PrefillPairs) +
			c.WindowedPrefillPair*float64(s.WindowedPrefillPairs)
		longest := c.PrefillKey * float64(s.LongestPrefill)
		total += b.PrefillLayer*c.Layers + b.PrefillKVRead*read +
			b.PrefillAttention*larger(larger(read, pairs), longest)
	}
	return total
}

// launchedShare returns the share of the layers' launches that no CUDA graph has. Beyond the captured
// size it rises to 1 over an eighth of that size. Within it, steps with prompts have the share of pieces.
// Graphs with a limit of requests are of decodes alone.
func (c *Costs) launchedShare(s *Sums) float64 {
	prompts, decodes := float64(s.PrefillTokens), float64(s.DecodeRequests)
	tokens := float64(s.rows())
	switch {
	case c.GraphTokens <= 0:
		return smaller(tokens, 1)
	case c.GraphRequests > 0 && decodes > c.GraphRequests:
		return 1
	case c.GraphRequests > 0:
		tokens = prompts
	}
	between := smaller(prompts, 1)
	if c.GraphTokens > 1 {
		between *= pieces
	}
	return smaller(larger(ramp*(tokens/larger(c.GraphTokens, 1)-1), between), 1)
}

// larger returns the larger number, and b where a is NaN. Unlike the built-in max it does not look
// at signs of 0, which makes it several times as fast.
func larger(a, b float64) float64 {
	if a > b {
		return a
	}
	return b
}

// smaller returns the smaller number likewise.
func smaller(a, b float64) float64 {
	if a < b {
		return a
	}
	return b
}
