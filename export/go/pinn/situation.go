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

// requestFeature is an entry of the registry that alpha belongs to; the Python module
// pinn.physics.request defines each. A nil value is a feature that simulators cannot see.
type requestFeature struct {
	Feature
	phase string
	value func(*Row, Situation) float64
}

func one(*Row, Situation) float64                  { return 1 }
func promptTokens(_ *Row, s Situation) float64     { return s.PromptTokens }
func stepTime(_ *Row, s Situation) float64         { return s.StepSeconds }
func recomputedTokens(_ *Row, s Situation) float64 { return s.RecomputedTokens }
func promptShare(r *Row, s Situation) float64      { return s.PromptTokens / r.MaxModelLen }
func inverseTP(r *Row, _ Situation) float64        { return 1 / r.TensorParallel }
func prefixCaching(r *Row, _ Situation) float64    { return truth(r.PrefixCaching) }
func chunkedPrefill(r *Row, _ Situation) float64   { return truth(r.ChunkedPrefill) }

func truth(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

var requestFeatures = []requestFeature{
	{Feature{"arrival_to_queue.constant", "s"}, ArrivalToQueue, one},
	{Feature{"arrival_to_queue.prompt_token", "s/token"}, ArrivalToQueue, promptTokens},
	{Feature{"arrival_to_queue.step_time", "1"}, ArrivalToQueue, stepTime},
	{Feature{"queue_to_schedule.constant", "s"}, QueueToSchedule, one},
	{Feature{"queue_to_schedule.step_time", "1"}, QueueToSchedule, stepTime},
	{Feature{"queue_to_schedule.queue_share", "s"}, QueueToSchedule, nil},
	{Feature{"queue_to_schedule.kv_usage", "s"}, QueueToSchedule, nil},
	{Feature{"queue_to_schedule.prompt_share", "s"}, QueueToSchedule, promptShare},
	{Feature{"queue_to_schedule.inverse_tensor_parallel", "s"}, QueueToSchedule, inverseTP},
	{Feature{"queue_to_schedule.prefix_caching", "s"}, QueueToSchedule, prefixCaching},
	{Feature{"queue_to_schedule.chunked_prefill", "s"}, QueueToSchedule, chunkedPrefill},
	{Feature{"queue_to_schedule.queue_share_squared", "s"}, QueueToSchedule, nil},
	{Feature{"queue_to_schedule.kv_usage_squared", "s"}, QueueToSchedule, nil},
	{Feature{"schedule_to_first_token.constant", "s"}, ScheduleToFirstToken, one},
	{Feature{"schedule_to_first_token.step_time", "1"}, ScheduleToFirstToken, stepTime},
	{Feature{"output_token.constant", "s/token"}, OutputToken, one},
	{Feature{"completion.constant", "s"}, Completion, one},
	{Feature{"preemption.constant", "s"}, Preemption, one},
	{Feature{"preemption.recomputed_token", "s/token"}, Preemption, recomputedTokens},
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
