package blis

// ages sums the progress of decodes without reading each in every step: each makes one token in a
// step, so that its progress is what it was born with plus the clock.
type ages struct {
	window   int64 // 0 for none
	clock    int64 // steps so far
	count    int64
	born     int64   // of all, added up
	near     int64   // how many have not reached the window's end,
	nearBorn int64   // and what they were born with
	reaching []int64 // how many of them reach it in a step, by that modulo the window
}

// add adds a decode with sign 1, and takes one out with sign -1.
func (a *ages) add(born, sign int64) {
	a.count += sign
	a.born += sign * born
	if step := a.window - 1 - born; step > a.clock {
		if a.reaching == nil {
			a.reaching = make([]int64, a.window)
		}
		a.near += sign
		a.nearBorn += sign * born
		a.reaching[step%a.window] += sign
	}
}

// tick counts a step.
func (a *ages) tick() {
	a.clock++
	if a.near == 0 {
		return
	}
	now := &a.reaching[a.clock%a.window]
	a.near -= *now
	a.nearBorn -= *now * (a.window - 1 - a.clock)
	*now = 0
}

// clear takes all decodes out.
func (a *ages) clear() {
	clear(a.reaching)
	*a = ages{window: a.window, clock: a.clock, reaching: a.reaching}
}

// context returns the sum of their progress.
func (a *ages) context() int64 { return a.born + a.count*a.clock }

// within returns the sum of as much of each progress as lies within the window.
func (a *ages) within() int64 {
	return a.nearBorn + a.near*a.clock + (a.count-a.near)*(a.window-1)
}
