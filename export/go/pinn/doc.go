// Package pinn predicts how long the steps of an LLM serving engine take.
//
// It reads what the Python program exports and gives the same microseconds:
//
//   - a coefficient table (pinn export table): one row per configuration, each a [Model];
//   - a checkpoint (checkpoints/pinn.safetensors) with a file of specifications
//     (pinn export specs): coefficients of any model on any GPU, see [Network].
//
// A step takes sum(beta x feature) seconds, where features come from sums over the batch's
// requests; what happens to a request outside the steps takes sum(alpha x feature). Both lists are
// named, and every file is checked against the names that this package implements.
//
// Inside everything is float64 and seconds; methods return whole microseconds, rounded half to
// even. The package needs nothing beyond the standard library.
package pinn
