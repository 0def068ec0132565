package pinn

import "fmt"

// stepTimeWeight is the weight of a new step in the moving average, as in Python's simulator.
const stepTimeWeight = 1.0 / 16

// Model is a latency model of one configuration, for one simulated engine.
//
// All times are microseconds. Its coefficients never change, but it remembers a moving average of the
// step times of the run that it serves, which request coefficients refer to. So each engine of a
// simulation needs its own, see [Model.Clone], and one is not safe for concurrent use.
type Model struct {
	row    *Row
	pass   *pass
	drafts *drafting // nil for steps of one pass
	window int64

	reading float64 // share of decode attention's reading that is beyond its arithmetic

	stepSeconds float64
}

// NewModel makes a latency model of a configuration.
//
// It fails where a coefficient or cost is negative, infinite or NaN, naming it.
func NewModel(row *Row) (*Model, error) {
	if len(row.Beta) != numStepFeatures || len(row.Alpha) != len(requestFeatures) {
		return nil, fmt.Errorf("a row needs %d beta and %d alpha, got %d and %d",
			numStepFeatures, len(requestFeatures), len(row.Beta), len(row.Alpha))
	}
	if err := row.check("row"); err != nil {
		return nil, err
	}
	pass := newPass(row.Costs, (*[numStepFeatures]float64)(row.Beta))
	c := &row.Costs
	arithmetic := (c.DecodePair + c.WindowedDecodePair) / (c.KVRead + c.WindowedKVRead)
	m := &Model{row: row, pass: pass, window: row.WindowTokens, reading: max(1-arithmetic, 0)}
	if row.Drafts != nil {
		m.drafts = newDrafting(row)
	}
	return m, nil
}

// Clone returns a model of the same configuration with nothing remembered.
func (m *Model) Clone() *Model {
	fresh := *m
	fresh.stepSeconds = 0
	return &fresh
}

// Row returns what the model was made from; it must not be changed.
func (m *Model) Row() *Row { return m.row }

// StepTime is the busy-loop time of the step of a batch, at least 1. It allocates nothing.
//
// Where the row speculates, every decode comes with all its drafts: NumNewTokens is not asked for,
// and the request gets [Drafts.TokensPerStep] tokens in the mean.
func (m *Model) StepTime(batch []*Request) int64 {
	sums := Sums{window: m.window}
	sums.AddAll(batch)
	return m.StepTimeOf(&sums)
}

// NewSums returns the sums of an empty batch of this model, for callers whose requests are of
// another type: add each, then ask [Model.StepTimeOf].
func (m *Model) NewSums() Sums { return Sums{window: m.window} }

// StepTimeOf is [Model.StepTime] of a batch that is already summed up.
func (m *Model) StepTimeOf(sums *Sums) int64 {
	s := m.StepSeconds(sums)
	if sums.PrefillTokens+sums.DecodeRequests > 0 {
		if m.stepSeconds == 0 {
			m.stepSeconds = s
		}
		m.stepSeconds += stepTimeWeight * (s - m.stepSeconds)
	}
	return max(microseconds(s), 1)
}

// Share takes out of a batch's sums what its decodes find in the GPU's cache, of so many keys that
// they have in common with others. Attention goes through a layer head by head, so what one head
// reads of all requests has to fit; and reading never gets shorter than arithmetic.
func (m *Model) Share(sums *Sums, keys int64) {
	if sums.DecodeRequests < 2 || keys <= 0 {
		return
	}
	context := float64(sums.DecodeContext)
	found := smaller(float64(keys), context-float64(sums.DecodeRequests))
	if read := context - found; read > m.row.GPUCacheTokens {
		found *= m.row.GPUCacheTokens / read
	}
	sums.Reread(int64(smaller(found, m.reading*context)))
}

// StepSeconds is the step time before rounding; it leaves the moving average alone.
func (m *Model) StepSeconds(sums *Sums) float64 {
	if m.drafts != nil {
		return m.drafts.seconds(sums)
	}
	return m.pass.seconds(sums)
}

// Features are those of a batch, in the order of [StepFeatures]: seconds at datasheet rates where
// the unit of the coefficient is "1", else counts.
func (m *Model) Features(sums *Sums) []float64 {
	var f [numStepFeatures]float64
	if m.drafts != nil {
		m.drafts.features(sums, &f)
	} else {
		stepValues(&m.pass.costs, sums, &f)
	}
	return f[:]
}

// Phase is the time of one phase of a request of so many prompt tokens, such as [ArrivalToQueue].
func (m *Model) Phase(phase string, promptTokens float64) int64 {
	return microseconds(m.row.phaseSeconds(phase, promptTokens))
}

// StepAverage is the moving average of the step times so far in seconds, 0 before the first step.
func (m *Model) StepAverage() float64 { return m.stepSeconds }

// QueueingTime is the time from a request's arrival to the engine's input queue. The wait in that
// queue is not in it: a simulator has that from its own queue.
func (m *Model) QueueingTime(req *Request) int64 {
	return m.Phase(ArrivalToQueue, float64(max(req.InputLen, 0)))
}

// FirstTokenDelay is all that comes before a request's first token beside its waiting and its
// steps, for a simulator that asks for nothing else and plans no batch ahead: the phases from
// arrival to first token and, if others are being served, one mean step, which vLLM's asynchronous
// scheduling costs a newcomer.
func (m *Model) FirstTokenDelay(promptTokens float64, besideOthers bool) int64 {
	seconds := m.row.phaseSeconds(ArrivalToQueue, promptTokens) + m.schedulingSeconds(promptTokens)
	return microseconds(m.stepSeconds*truth(besideOthers) + seconds)
}

// OutputTokenProcessingTime is what the API server works on each token that it streams. It hides
// behind the steps while the server keeps up.
func (m *Model) OutputTokenProcessingTime() int64 { return m.Phase(OutputToken, 0) }

// PostDecodeFixedOverhead is the time once at completion.
func (m *Model) PostDecodeFixedOverhead() int64 { return m.Phase(Completion, 0) }

// SchedulingTime is the time once per request between queue and first token, beyond its waiting and
// its steps.
func (m *Model) SchedulingTime(promptTokens float64) int64 {
	return microseconds(m.schedulingSeconds(promptTokens))
}

func (m *Model) schedulingSeconds(promptTokens float64) float64 {
	return m.row.phaseSeconds(QueueToSchedule, promptTokens) +
		m.row.phaseSeconds(ScheduleToFirstToken, promptTokens)
}

// PreemptionTime is the time per preemption, beside the recomputation, which is in the steps that
// do it.
func (m *Model) PreemptionTime(promptTokens float64) int64 {
	return m.Phase(Preemption, promptTokens)
}
