package blis

import (
	"slices"

	"github.com/inference-sim/inference-sim/sim"
)

// prompts knows which blocks the prompts of decodes have in common. It follows the batches of one
// engine, from each of which a few decodes leave and to which a few come.
type prompts struct {
	alike bool                // whether two that arrived begin with the same block
	first map[uint64]struct{} // blocks of those that arrived; not kept once two are alike

	decodes, spare []*sim.Request   // of the last step in their order, and room for the next
	readers        map[uint64]int64 // of each block
	shared         int64            // readers beside the first, of all blocks together
}

// arrive notes a request's first block. Prompts that differ in it have none in common.
func (p *prompts) arrive(r *sim.Request, blockSize int64) {
	if p.alike || int64(len(r.InputTokens)) < blockSize {
		return
	}
	if p.first == nil {
		p.first = map[uint64]struct{}{}
	}
	eachBlock(r.InputTokens[:blockSize], blockSize, func(key uint64) {
		_, p.alike = p.first[key]
		p.first[key] = struct{}{}
	})
	if p.alike {
		p.first = nil
	}
}

// sharedKeys counts the keys of a batch's decodes that another of them has too: those of all readers
// of a block but one. mixed tells whether there is anything but decodes.
func (p *prompts) sharedKeys(batch []*sim.Request, blockSize int64, mixed bool) int64 {
	if mixed && p.same(batch) || !mixed && slices.Equal(p.decodes, batch) {
		return p.shared * blockSize
	}
	if p.readers == nil {
		p.readers = map[uint64]int64{}
	}
	before, now := p.decodes, p.spare[:0]
	for _, r := range batch {
		if !decodes(r) {
			continue
		}
		for len(before) > 0 && before[0] != r {
			p.leave(before[0], blockSize)
			before = before[1:]
		}
		if len(before) > 0 {
			before = before[1:]
		} else {
			p.come(r, blockSize)
		}
		now = append(now, r)
	}
	for _, r := range before {
		p.leave(r, blockSize)
	}
	p.decodes, p.spare = now, p.decodes
	return p.shared * blockSize
}

// same tells whether a batch's decodes are those of the last step.
func (p *prompts) same(batch []*sim.Request) bool {
	count := 0
	for _, r := range batch {
		if decodes(r) {
			if count == len(p.decodes) || p.decodes[count] != r {
				return false
			}
			count++
		}
	}
	return count == len(p.decodes)
}

func (p *prompts) come(r *sim.Request, blockSize int64) {
	eachBlock(r.InputTokens, blockSize, func(key uint64) {
		p.shared += min(p.readers[key], 1)
		p.readers[key]++
	})
}

func (p *prompts) leave(r *sim.Request, blockSize int64) {
	eachBlock(r.InputTokens, blockSize, func(key uint64) {
		if p.readers[key]--; p.readers[key] == 0 {
			delete(p.readers, key)
		} else {
			p.shared--
		}
	})
}

// eachBlock tells the key of every whole block of a prompt: a hash of all tokens up to its end
// (FNV-1a).
func eachBlock(tokens []sim.TokenID, blockSize int64, tell func(key uint64)) {
	key := uint64(14695981039346656037)
	for i, token := range tokens {
		key = (key ^ uint64(uint32(token))) * 1099511628211
		if int64(i+1)%blockSize == 0 {
			tell(key)
		}
	}
}
