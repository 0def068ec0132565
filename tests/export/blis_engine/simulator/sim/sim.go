// Package sim is a small model of BLIS's engine, with its names, for where BLIS cannot be had: it
// lets the adapter be compiled, run and measured. It is no part of BLIS; it was written from BLIS's
// documented behaviour of August 2026.
//
// What it has: one server whose batches are formed as BLIS forms them (running requests first, then
// waiting ones in their order; chunked prompts; eviction of the last; no batch planned ahead), the
// order of its events, and what it drops. What it leaves out: routing, admission, timeouts,
// sessions, everything that is about more than one server.
package sim

// TokenID is a token of a prompt.
type TokenID int32

// States of a request.
const (
	StateQueued    = "queued"
	StateRunning   = "running"
	StateCompleted = "completed"
)

// Request is a request as latency models see it, and what the engine keeps of it.
type Request struct {
	ID            string
	InputTokens   []TokenID // the prompt
	OutputTokens  []TokenID
	MaxOutputLen  int
	State         string
	ArrivalTime   int64
	ProgressIndex int64 // input processed and output generated: the KV length
	NumNewTokens  int   // tokens scheduled in this step

	firstToken int64 // time to first token, 0 before it
	itlSum     int64
	cached     int64 // of a request that is admitted in this step
}

func (r *Request) inputLen() int64 { return int64(len(r.InputTokens)) }

func (r *Request) prefilled() bool { return r.ProgressIndex >= r.inputLen() }

// LatencyModel is what BLIS asks; times are microseconds.
type LatencyModel interface {
	StepTime(batch []*Request) int64
	QueueingTime(req *Request) int64
	OutputTokenProcessingTime() int64
	PostDecodeFixedOverhead() int64
}

// KVStore is a KV cache, see package kv.
type KVStore interface {
	// GetCachedBlocks counts the leading whole blocks of a prompt that are there.
	GetCachedBlocks(tokens []TokenID) int64
	// AllocateKVBlocks makes room for a request's first tokens, of which cached blocks are there
	// already; false where there is none, and then nothing has changed.
	AllocateKVBlocks(req *Request, tokens, cached int64) bool
	// ReleaseKVBlocks gives a request's blocks back.
	ReleaseKVBlocks(req *Request)
	TotalCapacity() int64
	BlockSize() int64
}

// KVCacheConfig sizes the KV cache.
type KVCacheConfig struct{ TotalKVBlocks, BlockSizeTokens int64 }

// NewKVCacheConfig takes blocks, their size, and four settings of a second tier, unused here.
func NewKVCacheConfig(blocks, blockSize, _ int64, _ float64, _, _ int64) KVCacheConfig {
	return KVCacheConfig{blocks, blockSize}
}

// BatchConfig bounds a batch.
type BatchConfig struct {
	MaxRunningReqs, MaxScheduledTokens, LongPrefillTokenThreshold int64
}

// NewBatchConfig takes requests, tokens, and tokens of a prompt per step, 0 for no such limit.
func NewBatchConfig(requests, tokens, longPrefill int64) BatchConfig {
	return BatchConfig{requests, tokens, longPrefill}
}

// SimConfig is what a simulator is made of.
type SimConfig struct {
	Horizon int64
	KVCacheConfig
	BatchConfig
	MaxModelLen int64 // 0 for no limit
}

// Metrics are what a run is told by, in microseconds and by request.
type Metrics struct {
	RequestTTFTs      map[string]float64
	RequestE2Es       map[string]float64
	CompletedRequests int
	DroppedUnservable int
	PreemptionCount   int64
}
