package pinn

import "math"

// power of a base of at most 1 by its logarithm.
func power(log, exponent float64) float64 {
	if exponent == 0 {
		return 1
	}
	return math.Exp(log * exponent)
}

// larger is max of numbers; of what is none, the second.
func larger(a, b float64) float64 {
	if a > b {
		return a
	}
	return b
}

// smaller is min likewise.
func smaller(a, b float64) float64 {
	if a < b {
		return a
	}
	return b
}
