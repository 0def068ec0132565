package pinn

import "math"

// A Feature is a named entry of one of the two registries. The unit is that of its coefficient:
// "1" for a multiplier.
type Feature struct{ Name, Unit string }

// StepFeatures lists the step features that this package implements, in the order of
// [Model.Features].
func StepFeatures() []Feature { return append([]Feature(nil), stepFeatures[:]...) }

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
