package sim

import (
	"container/heap"
	"errors"
)

// Simulator is one simulated server.
type Simulator struct {
	Metrics *Metrics

	config  SimConfig
	kv      KVStore
	model   LatencyModel
	events  events
	sent    int64
	running []*Request
	waiting []*Request
	stepDue bool
	batch   []*Request
}

// NewSimulator makes a server of a configuration, a KV cache and a latency model.
func NewSimulator(config SimConfig, kv KVStore, model LatencyModel) (*Simulator, error) {
	if kv == nil || model == nil || kv.TotalCapacity() < 1 || config.MaxRunningReqs < 1 ||
		config.MaxScheduledTokens < 1 {
		return nil, errors.New("a simulator needs a KV cache, a latency model and positive limits")
	}
	metrics := &Metrics{RequestTTFTs: map[string]float64{}, RequestE2Es: map[string]float64{}}
	return &Simulator{Metrics: metrics, config: config, kv: kv, model: model}, nil
}

// Kinds of events, in the order in which they happen at one microsecond.
const (
	arrival = iota
	enqueue
	step
)

type event struct {
	time int64
	kind int
	sent int64
	req  *Request
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	a, b := &e[i], &e[j]
	if a.time != b.time {
		return a.time < b.time
	}
	if a.kind != b.kind {
		return a.kind < b.kind
	}
	return a.sent < b.sent
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

func (s *Simulator) push(time int64, kind int, req *Request) {
	s.sent++
	heap.Push(&s.events, event{time, kind, s.sent, req})
}

// InjectArrival sends a request at its ArrivalTime.
func (s *Simulator) InjectArrival(req *Request) { s.push(req.ArrivalTime, arrival, req) }

// Run serves until nothing happens any more, or the horizon.
func (s *Simulator) Run() {
	for len(s.events) > 0 && s.events[0].time <= s.config.Horizon {
		e := heap.Pop(&s.events).(event)
		switch e.kind {
		case arrival:
			s.push(e.time+s.model.QueueingTime(e.req), enqueue, e.req)
		case enqueue:
			s.enqueue(e.time, e.req)
		case step:
			s.step(e.time)
		}
	}
}

// enqueue drops what can never be served, and wakes an idle server.
func (s *Simulator) enqueue(now int64, r *Request) {
	size, longest := s.kv.BlockSize(), s.config.MaxModelLen
	input := r.inputLen()
	tooLong := longest > 0 && (input >= longest || input+int64(len(r.OutputTokens)) > longest)
	if tooLong || (input+size-1)/size > s.kv.TotalCapacity() {
		s.Metrics.DroppedUnservable++
		return
	}
	s.waiting = append(s.waiting, r)
	s.wake(now)
}

func (s *Simulator) wake(now int64) {
	if !s.stepDue {
		s.stepDue = true
		s.push(now, step, nil)
	}
}

// step forms a batch and applies its outcome at once. A request that ends leaves at the step's
// start; where none is left, an arrival starts a step that overlaps.
func (s *Simulator) step(now int64) {
	s.stepDue = false
	s.formBatch()
	s.batch = s.batch[:0]
	for _, r := range s.running {
		if r.NumNewTokens > 0 {
			s.batch = append(s.batch, r)
		}
	}
	duration := max(s.model.StepTime(s.batch), 1)
	perToken := duration + s.model.OutputTokenProcessingTime()
	left := s.running[:0]
	for _, r := range s.running {
		s.advance(r, now, perToken)
		if r.State == StateRunning {
			left = append(left, r)
		}
	}
	s.running = left
	if len(s.running)+len(s.waiting) > 0 {
		s.wake(now + duration)
	}
}

// advance applies a step to a request: progress, its first or next token, its end.
func (s *Simulator) advance(r *Request, now, perToken int64) {
	wasPrefilled := r.prefilled()
	if !wasPrefilled {
		r.ProgressIndex += r.cached + int64(r.NumNewTokens)
		r.cached = 0
		if r.prefilled() {
			r.firstToken = now + perToken - r.ArrivalTime
		}
	} else if r.NumNewTokens > 0 {
		r.ProgressIndex++
		r.itlSum += perToken
	}
	made := r.ProgressIndex - r.inputLen() + 1
	if r.prefilled() && made >= int64(len(r.OutputTokens)) {
		r.State = StateCompleted
		s.kv.ReleaseKVBlocks(r)
		s.Metrics.CompletedRequests++
		s.Metrics.RequestTTFTs[r.ID] = float64(r.firstToken)
		s.Metrics.RequestE2Es[r.ID] = float64(r.firstToken + r.itlSum + s.model.PostDecodeFixedOverhead())
	}
}
