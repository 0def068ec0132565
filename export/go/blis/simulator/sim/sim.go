// Package sim holds the signatures of BLIS's package of this name that the adapter uses, as they
// were in August 2026, so that the adapter compiles and is tested where BLIS cannot be had. It is no
// part of BLIS and does nothing.
package sim

// Request has the fields of BLIS's Request that a latency model reads.
type Request struct {
	InputTokens   []int // the prompt
	OutputTokens  []int
	ProgressIndex int64 // input processed and output generated: the KV length
	NumNewTokens  int   // tokens scheduled in this step
}

// LatencyModel is what BLIS asks; times are microseconds.
type LatencyModel interface {
	StepTime(batch []*Request) int64
	QueueingTime(req *Request) int64
	OutputTokenProcessingTime() int64
	PostDecodeFixedOverhead() int64
}

// OlderLatencyModel is what trees before it ask.
type OlderLatencyModel interface {
	StepTime(batch []*Request) int64
	QueueingTime(req *Request) int64
	OutputTokenProcessingTime() int64
	SchedulingProcessingTime() int64
	PreemptionProcessingTime() int64
}
