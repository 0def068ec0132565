package blis

import (
	"slices"

	"github.com/inference-sim/inference-sim/sim"
)

// prompts knows which blocks the prompts of decodes have in common. It follows the batches of one
// engine, from each of which a few decodes leave and to which a few come: what that costs does not
// grow with the length of prompts, which are read when they arrive.
type prompts struct {
	alike bool // whether two that arrived begin with the same block; else no batch is followed

	nodes   map[uint64]*node // of what prompts have in common, by the key of its first block
	known   map[*sim.Request]*reader
	decodes []*sim.Request // of the last step in their order
	readers []*reader      // the same
	ages    ages           // of them
	gone    []*reader      // those that left since the last arrival
	shared  int64          // blocks of readers beside each first one
}

func newPrompts(window int64) prompts {
	return prompts{
		nodes: map[uint64]*node{}, known: map[*sim.Request]*reader{}, ages: ages{window: window},
	}
}

// node is a run of blocks that the same prompts have; its parent is what they have before it.
type node struct {
	parent        *node
	keys          []uint64 // of its blocks
	readers, refs int64    // decodes that read it, and requests that are known to begin with it
}

// reader is a known request and the last run of its prompt.
type reader struct {
	request *sim.Request
	leaf    *node
	running bool
	left    bool  // whether it is among those that are gone
	born    int64 // its progress when the clock was at 0
}

// arrive reads a request's prompt.
func (p *prompts) arrive(r *sim.Request, blockSize int64) {
	for _, left := range p.gone {
		p.forget(left)
	}
	p.gone = p.gone[:0]
	p.know(r, blockSize)
}

// know returns the reader of a request. It puts the prompt of a new one among the runs of blocks, of
// which it may cut one in two.
func (p *prompts) know(r *sim.Request, blockSize int64) *reader {
	if found := p.known[r]; found != nil {
		p.alike = p.alike || found.leaf != nil
		return found
	}
	var last *node
	for keys := blockKeys(r.InputTokens, blockSize); len(keys) > 0; {
		next := p.nodes[keys[0]]
		p.alike = p.alike || next != nil
		if next == nil {
			next = &node{parent: last, keys: keys}
			p.nodes[keys[0]] = next
		}
		same := 0
		for same < min(len(keys), len(next.keys)) && keys[same] == next.keys[same] {
			same++
		}
		if same < len(next.keys) {
			front := *next
			front.keys = next.keys[:same]
			next.keys, next.parent = next.keys[same:], &front
			p.nodes[front.keys[0]], p.nodes[next.keys[0]] = &front, next
			next = &front
		}
		last, keys = next, keys[same:]
	}
	found := &reader{request: r, leaf: last}
	p.known[r] = found
	for n := last; n != nil; n = n.parent {
		n.refs++
	}
	return found
}

// forget drops a request that decodes no more, and the runs of blocks that only it had.
func (p *prompts) forget(left *reader) {
	left.left = false
	if left.running {
		return
	}
	delete(p.known, left.request)
	for n := left.leaf; n != nil; n = n.parent {
		if n.refs--; n.refs == 0 {
			delete(p.nodes, n.keys[0])
		}
	}
}

// sumKnown sums the decodes that the rest of a batch begins with, as far as they are those of the last
// step from one on: they still decode, since an evicted request misses a step.
func (p *prompts) sumKnown(batch []*sim.Request, at int) decoding {
	last := p.decodes[at:]
	batch = batch[:min(len(batch), len(last))]
	last = last[:len(batch)]
	count, context := 0, int64(0)
	for ; count < len(batch)-3; count += 4 {
		a, b, c, d := batch[count], batch[count+1], batch[count+2], batch[count+3]
		if a != last[count] || b != last[count+1] || c != last[count+2] || d != last[count+3] {
			break
		}
		context += a.ProgressIndex + b.ProgressIndex + (c.ProgressIndex + d.ProgressIndex)
	}
	for ; count < len(batch) && batch[count] == last[count]; count++ {
		context += batch[count].ProgressIndex
	}
	return decoding{count, context, -int64(count)}
}

// follow adds the first request of the rest of a batch behind the at decodes that it had so far.
func (p *prompts) follow(rest []*sim.Request, at int, blockSize int64) {
	r := rest[0]
	if at < len(p.decodes) && p.decodes[at] == r {
		return
	}
	found := p.know(r, blockSize)
	for found.running && at < len(p.decodes) { // those before it left
		p.leave(p.readers[at])
		p.decodes, p.readers = slices.Delete(p.decodes, at, at+1), slices.Delete(p.readers, at, at+1)
		if at < len(p.decodes) && p.decodes[at] == r {
			return
		}
	}
	// In most steps one leaves and another comes, often in its place.
	inPlace := !found.running && len(rest) > 1 && at+1 < len(p.decodes) && rest[1] == p.decodes[at+1]
	if inPlace {
		p.leave(p.readers[at])
	}
	found.running = true
	found.born = r.ProgressIndex - p.ages.clock
	p.ages.add(found.born, 1)
	for n := found.leaf; n != nil; n = n.parent {
		if n.readers++; n.readers > 1 {
			p.shared += int64(len(n.keys))
		}
	}
	if inPlace {
		p.decodes[at], p.readers[at] = r, found
		return
	}
	p.decodes, p.readers = slices.Insert(p.decodes, at, r), slices.Insert(p.readers, at, found)
}

// begin begins a step, unless the last one is asked about again.
func (p *prompts) begin() {
	if len(p.decodes) > 0 && p.decodes[0].ProgressIndex != p.readers[0].born+p.ages.clock {
		p.ages.tick()
	}
}

// end drops the decodes of the last step from one on. It returns how much of the others' progress, of
// which the sum is known, lies within the window.
func (p *prompts) end(at int, context int64) int64 {
	for i := at; i < len(p.readers); i++ {
		p.leave(p.readers[i])
		p.decodes[i], p.readers[i] = nil, nil
	}
	p.decodes, p.readers = p.decodes[:at], p.readers[:at]
	if context != p.ages.context() { // they do not make a token each
		p.ages.clear()
		for i, r := range p.decodes {
			p.readers[i].born = r.ProgressIndex - p.ages.clock
			p.ages.add(p.readers[i].born, 1)
		}
	}
	return p.ages.within()
}

func (p *prompts) leave(left *reader) {
	left.running = false
	p.ages.add(left.born, -1)
	for n := left.leaf; n != nil; n = n.parent {
		if n.readers--; n.readers > 0 {
			p.shared -= int64(len(n.keys))
		}
	}
	if !left.left {
		left.left = true
		p.gone = append(p.gone, left)
	}
}

// blockKeys returns the keys of a prompt's whole blocks: hashes of all tokens up to their ends (FNV-1a).
func blockKeys(tokens []sim.TokenID, blockSize int64) []uint64 {
	keys := make([]uint64, 0, int64(len(tokens))/blockSize)
	key := uint64(14695981039346656037)
	for i, token := range tokens {
		key = (key ^ uint64(uint32(token))) * 1099511628211
		if int64(i+1)%blockSize == 0 {
			keys = append(keys, key)
		}
	}
	return keys
}
