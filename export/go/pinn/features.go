package pinn

import "math"

// A Feature is a named entry of one of the two registries. The unit is that of its coefficient:
// "1" for a multiplier.
type Feature struct{ Name, Unit string }

// StepFeatures lists the step features that this package implements, in the order of
// [Model.Features].
func StepFeatures() []Feature { return append([]Feature(nil), stepFeatures[:]...) }

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
