package pinn

import "math"

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

// power of a base of at most 1 by its logarithm.
func power(log, exponent float64) float64 {
	if exponent == 0 {
		return 1
	}
	return math.Exp(log * exponent)
}

// larger and smaller are max and min of numbers, which need no care for those that are none.
func larger(a, b float64) float64 {
	if a > b {
		return a
	}
	return b
}

func smaller(a, b float64) float64 {
	if a < b {
		return a
	}
	return b
}
