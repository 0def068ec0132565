package pinn

import (
	"iter"
	"reflect"
)

// StepValues has a number per step feature: the features of a batch, or beta. A tag names the
// feature's column, with the unit of its coefficient: 1 for a multiplier of seconds at datasheet
// rates.
type StepValues struct {
	Step                    float64 `column:"step [s]"`
	Layer                   float64 `column:"layer [s/layer]"`
	MoELayer                float64 `column:"moe_layer [s/layer]"`
	QuantizedLayer          float64 `column:"quantized_layer [s/layer]"`
	ParallelLayer           float64 `column:"parallel_layer [s/layer]"`
	LaunchedLayer           float64 `column:"launched_layer [s/layer]"`
	PrefillLayer            float64 `column:"prefill_layer [s/layer]"`
	DecodeLayer             float64 `column:"decode_layer [s/layer]"`
	Request                 float64 `column:"request [s/request]"`
	Sampling                float64 `column:"sampling [1]"`
	Activations             float64 `column:"activations [1]"`
	GEMM                    float64 `column:"gemm [1]"`
	GEMMWeights             float64 `column:"gemm_weights [1]"`
	GEMMCompute             float64 `column:"gemm_compute [1]"`
	GEMMBeyond128           float64 `column:"gemm_beyond_128 [1]"`
	GEMMBeyond1024          float64 `column:"gemm_beyond_1024 [1]"`
	Experts                 float64 `column:"experts [1]"`
	ExpertsHit              float64 `column:"experts_hit [1]"`
	ExpertsHitTenth         float64 `column:"experts_hit_tenth [1]"`
	ExpertCompute           float64 `column:"expert_compute [1]"`
	ExpertComputeBeyond1024 float64 `column:"expert_compute_beyond_1024 [1]"`
	ExpertActivations       float64 `column:"expert_activations [1]"`
	DecodeAttention         float64 `column:"decode_attention [1]"`
	KVRead                  float64 `column:"kv_read [1]"`
	PrefillAttention        float64 `column:"prefill_attention [1]"`
	PrefillTokens           float64 `column:"prefill_tokens [1]"`
	PrefillKVRead           float64 `column:"prefill_kv_read [1]"`
	AllReduce               float64 `column:"all_reduce [1]"`
	AllReduceFirst256K      float64 `column:"all_reduce_first_256k [1]"`
	AllReduceFirst8M        float64 `column:"all_reduce_first_8m [1]"`
	LargeAllReduce          float64 `column:"large_all_reduce [s]"`
	ExpertExchange          float64 `column:"expert_exchange [1]"`
	Pipeline                float64 `column:"pipeline [1]"`
	CPUOffload              float64 `column:"cpu_offload [1]"`
}

// RequestValues are alpha: what happens to a request outside the steps that work on it. A tag names
// the column.
type RequestValues struct {
	ArrivalToQueue               float64 `column:"arrival_to_queue.constant [s]"`
	ArrivalToQueuePerPromptToken float64 `column:"arrival_to_queue.prompt_token [s/token]"`
	QueueToSchedule              float64 `column:"queue_to_schedule.constant [s]"`
	ScheduleToFirstToken         float64 `column:"schedule_to_first_token.constant [s]"`
	OutputToken                  float64 `column:"output_token.constant [s/token]"`
	Completion                   float64 `column:"completion.constant [s]"`
	Preemption                   float64 `column:"preemption.constant [s]"` // without the recomputation
}

// QueueingSeconds returns the time from a request's arrival to the engine's queue.
func (a *RequestValues) QueueingSeconds(promptTokens int64) float64 {
	return a.ArrivalToQueue + a.ArrivalToQueuePerPromptToken*float64(max(promptTokens, 0))
}

// SchedulingSeconds returns the time between queue and first token beside a request's steps.
func (a *RequestValues) SchedulingSeconds() float64 {
	return a.QueueToSchedule + a.ScheduleToFirstToken
}

// numbers returns the fields of a struct of numbers: the column and the place of each.
func numbers[T StepValues | RequestValues | Costs](s *T) iter.Seq2[string, *float64] {
	return func(yield func(column string, place *float64) bool) {
		v := reflect.ValueOf(s).Elem()
		for i := range v.NumField() {
			place := v.Field(i).Addr().Interface().(*float64)
			if !yield(v.Type().Field(i).Tag.Get("column"), place) {
				return
			}
		}
	}
}
