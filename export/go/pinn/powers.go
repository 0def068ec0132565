package pinn

import "math"

// keptPowers is how many powers of a base are kept, since most steps have few tokens and an
// exponential takes long.
const keptPowers = 2048

// powers of a base, such as the chance that a token does not use a given expert.
type powers struct {
	log  float64
	kept []float64 // of exponents of 0, 0.1, 0.2, ...
}

func powersOf(base float64) powers {
	p := powers{log: math.Log(base)}
	if base == 1 {
		return p
	}
	p.kept = make([]float64, keptPowers)
	p.kept[0] = 1
	for tenths := 1; tenths < keptPowers; tenths++ {
		p.kept[tenths] = math.Exp(0.1 * float64(tenths) * p.log)
	}
	return p
}

// of is the power with an exponent that is not negative. Most are numbers of tokens or a tenth of
// one; that of a whole number is the tenth power of that of its tenth.
func (p *powers) of(exponent float64) float64 {
	if 0 <= exponent && exponent < keptPowers && p.kept != nil {
		if i := int(exponent); float64(i) == exponent {
			tenth := p.kept[i]
			square := tenth * tenth
			fourth := square * square
			return fourth * fourth * square
		}
		if i := int(10*exponent + 0.5); i < len(p.kept) && 0.1*float64(i) == exponent {
			return p.kept[i]
		}
	}
	return math.Exp(exponent * p.log)
}
