package blis

import "github.com/inference-sim/inference-sim/sim"

// prompts compares those of the decodes in a batch.
type prompts struct {
	decodes []*sim.Request // of the last step
	shared  int64          // keys that they have in common
	blocks  map[uint64]struct{}
}

// sharedKeys counts the keys of a batch's decodes that lie in a block which another holds too: all
// but the first reader's. Only prompts are shared, so the count stays while the decodes do.
func (p *prompts) sharedKeys(batch []*sim.Request, blockSize int64) int64 {
	if p.same(batch) {
		return p.shared
	}
	if p.blocks == nil {
		p.blocks = map[uint64]struct{}{}
	}
	clear(p.blocks)
	p.decodes = p.decodes[:0]
	held := 0
	for _, r := range batch {
		if decodes(r) {
			p.decodes = append(p.decodes, r)
			held += p.addBlocks(r.InputTokens, blockSize)
		}
	}
	p.shared = int64(held-len(p.blocks)) * blockSize
	return p.shared
}

// same tells whether a batch's decodes are those of the last step.
func (p *prompts) same(batch []*sim.Request) bool {
	known := p.decodes
	for _, r := range batch {
		if !decodes(r) {
			continue
		}
		if len(known) == 0 || known[0] != r {
			return false
		}
		known = known[1:]
	}
	return len(known) == 0
}

// addBlocks notes the whole blocks of a prompt, each by a hash of all tokens up to its end (FNV-1a),
// and returns their number.
func (p *prompts) addBlocks(tokens []sim.TokenID, blockSize int64) int {
	key, count := uint64(14695981039346656037), 0
	for i, token := range tokens {
		key = (key ^ uint64(uint32(token))) * 1099511628211
		if int64(i+1)%blockSize == 0 {
			p.blocks[key] = struct{}{}
			count++
		}
	}
	return count
}
