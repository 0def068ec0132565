package pinn

import (
	"maps"
	"math"
)

// Model is the latency model of a configuration. It does not change once made, so that several
// simulated engines and goroutines may share one.
type Model struct {
	row       *Row
	step      *stepTimer
	readShare float64 // share of decode attention's reading that is beyond its arithmetic
}

// NewModel makes the latency model of a row, which must not be changed afterwards.
//
// It fails where a coefficient or a cost is negative, infinite or NaN, with its name.
func NewModel(row *Row) (*Model, error) {
	if err := row.check(); err != nil {
		return nil, err
	}
	c := &row.Costs
	arithmetic := (c.DecodePair + c.WindowedDecodePair) / (c.KVRead + c.WindowedKVRead)
	return &Model{row, newStepTimer(row, row.Beta, keptTokens), max(1-arithmetic, 0)}, nil
}

// Row returns the row that the model was made of; it must not be changed.
func (m *Model) Row() *Row { return m.row }

// StepTime returns the time of a batch's step in microseconds, at least 1. It allocates nothing.
//
// Where the row speculates, every decode comes with all its drafts whatever its NumNewTokens, and
// gets [Drafts.TokensPerStep] tokens in the mean.
func (m *Model) StepTime(batch []Request) int64 {
	sums := m.NewSums()
	for _, r := range batch {
		sums.Add(r)
	}
	return max(Microseconds(m.StepSeconds(&sums)), 1)
}

// NewSums returns the sums of an empty batch, for callers whose requests are of another type.
func (m *Model) NewSums() Sums { return Sums{window: m.row.WindowTokens} }

// StepSeconds returns the time of the step of a batch with these sums, 0 for an empty one.
func (m *Model) StepSeconds(sums *Sums) float64 { return m.step.seconds(sums) }

// Features returns the features of a batch: seconds at datasheet rates where the unit of the
// coefficient is 1, else counts. Each is the time of a step whose beta is 1 for it and else 0.
func (m *Model) Features(sums *Sums) (features StepValues) {
	var beta StepValues
	places := maps.Collect(numbers(&features))
	for column, one := range numbers(&beta) {
		*one = 1
		*places[column] = newStepTimer(m.row, beta, 0).seconds(sums)
		*one = 0
	}
	return features
}

// Reread takes out of a batch's sums what its decodes find in the GPU's cache of so many keys that
// they share with others. Attention works head by head, so what one head reads of all requests has
// to fit; and reading never gets shorter than arithmetic.
func (m *Model) Reread(sums *Sums, keys int64) {
	if sums.DecodeRequests < 2 || keys <= 0 {
		return
	}
	context := float64(sums.DecodeContext)
	found := smaller(float64(keys), context-float64(sums.DecodeRequests))
	if read := context - found; read > m.row.GPUCacheTokens {
		found *= m.row.GPUCacheTokens / read
	}
	sums.Reread(int64(smaller(found, m.readShare*context)))
}

// Microseconds returns seconds as whole microseconds, rounded half to even; 0 for NaN and negative
// numbers, and the largest int64 for what is beyond it.
func Microseconds(seconds float64) int64 {
	us := math.RoundToEven(seconds * 1e6)
	switch {
	case us >= math.MaxInt64:
		return math.MaxInt64
	case us > 0:
		return int64(us)
	}
	return 0
}
