package pinn

// Situation is what a simulator can know of a request outside its steps. The depth of the queue and
// the use of the cache, which some coefficients ask for, no simulator callback sees: those features
// are 0 here.
type Situation struct {
	PromptTokens     float64
	StepSeconds      float64 // the configuration's own step time around the request
	RecomputedTokens float64 // after a preemption
}

// Phases of a request outside the steps that work on it.
const (
	ArrivalToQueue       = "arrival_to_queue"
	QueueToSchedule      = "queue_to_schedule"
	ScheduleToFirstToken = "schedule_to_first_token"
	OutputToken          = "output_token"
	Completion           = "completion"
	Preemption           = "preemption"
)

func truth(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// RequestFeatures lists the request features that this package implements, in the order of
// [Row.Alpha].
func RequestFeatures() []Feature {
	found := make([]Feature, len(requestFeatures))
	for i, f := range requestFeatures {
		found[i] = f.Feature
	}
	return found
}
