package sim

// formBatch gives tokens to running requests first, then admits waiting ones while there are seats
// and tokens and nothing was evicted.
func (s *Simulator) formBatch() {
	budget := s.config.MaxScheduledTokens
	evicted := false
	for i := 0; i < len(s.running); i++ {
		r := s.running[i]
		r.NumNewTokens = 0
		tokens := int64(1)
		if !r.prefilled() {
			tokens = s.chunk(r.inputLen()-r.ProgressIndex, budget)
		}
		if budget < tokens || tokens == 0 {
			continue
		}
		room, any := s.makeRoom(r, r.ProgressIndex+tokens, i)
		evicted = evicted || any
		if !room {
			break // it was the last one itself
		}
		r.NumNewTokens = int(tokens)
		budget -= tokens
	}
	if !evicted {
		s.admit(budget)
	}
}

func (s *Simulator) chunk(rest, budget int64) int64 {
	if threshold := s.config.LongPrefillTokenThreshold; threshold > 0 {
		rest = min(rest, threshold)
	}
	return min(rest, budget)
}

// makeRoom evicts requests from the end, the i-th itself at last, until its tokens fit.
func (s *Simulator) makeRoom(r *Request, tokens int64, i int) (room, evicted bool) {
	for !s.kv.AllocateKVBlocks(r, tokens, 0) {
		last := len(s.running) - 1
		s.evict(s.running[last])
		s.running = s.running[:last]
		evicted = true
		if last == i {
			return false, true
		}
	}
	return true, evicted
}

// evict puts a request to the queue's front; all that it has made is made again.
func (s *Simulator) evict(r *Request) {
	s.kv.ReleaseKVBlocks(r)
	r.State, r.ProgressIndex, r.NumNewTokens, r.firstToken, r.itlSum = StateQueued, 0, 0, 0, 0
	s.Metrics.PreemptionCount++
	s.waiting = append([]*Request{r}, s.waiting...)
}

func (s *Simulator) admit(budget int64) {
	for len(s.waiting) > 0 && budget > 0 && int64(len(s.running)) < s.config.MaxRunningReqs {
		r := s.waiting[0]
		blocks := s.kv.GetCachedBlocks(r.InputTokens)
		cached := blocks * s.kv.BlockSize()
		tokens := s.chunk(r.inputLen()-cached, budget)
		if !s.kv.AllocateKVBlocks(r, cached+tokens, blocks) {
			return
		}
		s.waiting = s.waiting[1:]
		r.State, r.NumNewTokens, r.cached = StateRunning, int(tokens), cached
		s.running = append(s.running, r)
		budget -= tokens
	}
}
