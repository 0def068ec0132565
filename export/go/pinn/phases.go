package pinn

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
