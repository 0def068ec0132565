package pinn

// tabledTokens is up to how many tokens a pass's time of them is kept: few steps have more.
const tabledTokens = 2048

// pass times passes of batches through the layers of a model; it does not change once made.
type pass struct {
	costs    costConstants
	weights  stepWeights
	byTokens [tabledTokens]float64 // what the number of tokens alone decides
}

func newPass(costs Costs, beta *[numStepFeatures]float64) *pass {
	p := &pass{costs: costs.constants()}
	p.weights = p.costs.weights(beta)
	for tokens := range p.byTokens {
		p.byTokens[tokens] = tokenSeconds(&p.costs, &p.weights, float64(tokens))
	}
	return p
}

// seconds is beta times the features of a batch.
func (p *pass) seconds(s *Sums) float64 {
	tokens := s.PrefillTokens + s.DecodeRequests
	if uint64(tokens) < tabledTokens {
		return p.byTokens[tokens] + otherSeconds(&p.costs, &p.weights, s)
	}
	return tokenSeconds(&p.costs, &p.weights, float64(tokens)) +
		otherSeconds(&p.costs, &p.weights, s)
}
