// Package pinn predicts how long the steps of an LLM serving engine take.
//
// It reads a coefficient table, which 'pinn export table' writes: one [Row] per configuration,
// found by a [Key]. A row gives a [Model], which computes the features of a batch and returns the time
// of the batch's step. Each feature takes beta x feature. The host's own features, step and request,
// come first; launching, launched_layer, then overlaps the GPU's work, all other features, and the step
// waits for the longer of the two. What happens to a request outside the steps takes
// sum(alpha x feature), see [RequestValues].
//
// A table is refused unless its coefficients are those that this package implements.
//
// Times are float64 seconds; [Microseconds] rounds them half to even, as the Python program does.
// The package needs nothing beyond the standard library.
package pinn
