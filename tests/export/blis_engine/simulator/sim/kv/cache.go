// Package kv is the KV cache of the model of BLIS in package sim: blocks of tokens, of which whole
// leading ones of a prompt are found again.
package kv

import (
	"container/list"

	"github.com/inference-sim/inference-sim/sim"
)

// KVCacheState is a cache of blocks; free ones keep what they hold until they are used again, the
// longest free first.
type KVCacheState struct {
	total, size int64
	free        *list.List // of *block
	known       map[uint64]*block
	held        map[*sim.Request][]*block
}

type block struct {
	key   uint64 // 0 where it holds no whole block of a prompt
	users int
	place *list.Element // among the free ones
}

// NewKVCacheState makes an empty cache.
func NewKVCacheState(blocks, blockSize int64) *KVCacheState {
	s := &KVCacheState{
		total: blocks, size: blockSize, free: list.New(), known: map[uint64]*block{},
		held: map[*sim.Request][]*block{},
	}
	for range blocks {
		b := &block{}
		b.place = s.free.PushBack(b)
	}
	return s
}

// TotalCapacity is the number of blocks.
func (s *KVCacheState) TotalCapacity() int64 { return s.total }

// BlockSize is the number of tokens in a block.
func (s *KVCacheState) BlockSize() int64 { return s.size }

// GetCachedBlocks counts the leading whole blocks of a prompt that are there.
func (s *KVCacheState) GetCachedBlocks(tokens []sim.TokenID) int64 {
	found := int64(0)
	s.eachKey(tokens, func(key uint64) bool {
		if s.known[key] == nil {
			return false
		}
		found++
		return true
	})
	return found
}

// eachKey tells the key of every whole block: a hash of all tokens up to its end (FNV-1a).
func (s *KVCacheState) eachKey(tokens []sim.TokenID, tell func(uint64) bool) {
	key := uint64(14695981039346656037)
	for i, token := range tokens {
		key = (key ^ uint64(uint32(token))) * 1099511628211
		if int64(i+1)%s.size == 0 && !tell(key) {
			return
		}
	}
}

// AllocateKVBlocks makes room for a request's first tokens, of which cached blocks are there
// already; false where there is none, and then nothing has changed.
func (s *KVCacheState) AllocateKVBlocks(r *sim.Request, tokens, cached int64) bool {
	have := s.held[r]
	need := (tokens+s.size-1)/s.size - int64(len(have))
	if need <= 0 {
		return true
	}
	if len(have) > 0 && int64(len(have))*s.size >= int64(len(r.InputTokens)) {
		return s.grow(r, need, nil) // by output alone, which nobody finds again
	}
	var keys []uint64
	s.eachKey(r.InputTokens, func(key uint64) bool { keys = append(keys, key); return true })
	if len(have) > 0 {
		return s.grow(r, need, keys[min(len(have), len(keys)):])
	}
	taken := 0 // cached blocks that are free now
	for _, key := range keys[:cached] {
		if s.known[key].users == 0 {
			taken++
		}
	}
	if need-cached > int64(s.free.Len()-taken) {
		return false
	}
	for _, key := range keys[:cached] {
		s.use(r, s.known[key])
	}
	return s.grow(r, need-cached, keys[cached:])
}

// grow takes free blocks, the first of which are to hold those keys.
func (s *KVCacheState) grow(r *sim.Request, count int64, keys []uint64) bool {
	if count > int64(s.free.Len()) {
		return false
	}
	for i := range count {
		b := s.free.Front().Value.(*block)
		if b.key != 0 && s.known[b.key] == b {
			delete(s.known, b.key)
		}
		b.key = 0
		if i < int64(len(keys)) {
			b.key = keys[i]
			s.known[b.key] = b
		}
		s.use(r, b)
	}
	return true
}

func (s *KVCacheState) use(r *sim.Request, b *block) {
	if b.users == 0 {
		s.free.Remove(b.place)
	}
	b.users++
	s.held[r] = append(s.held[r], b)
}

// ReleaseKVBlocks gives a request's blocks back, the last first.
func (s *KVCacheState) ReleaseKVBlocks(r *sim.Request) {
	have := s.held[r]
	for i := len(have) - 1; i >= 0; i-- {
		if b := have[i]; b.users > 1 {
			b.users--
		} else {
			b.users = 0
			b.place = s.free.PushBack(b)
		}
	}
	delete(s.held, r)
}
