package blis

// ages tell how far decodes have come without reading each in every step: each makes one token in it.
// A decode's progress is what it was born with and the clock.
type ages struct {
	window   int64 // 0 for none
	clock    int64 // steps so far
	count    int64
	born     int64   // of all, added up
	near     int64   // how many have not reached the window's end,
	nearBorn int64   // and what they were born with
	reaching []int64 // how many of them reach it in a step, by that modulo the window
}

// add a decode, or take one out.
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

func (a *ages) clear() {
	clear(a.reaching)
	*a = ages{window: a.window, clock: a.clock, reaching: a.reaching}
}

// context is their progress added up.
func (a *ages) context() int64 { return a.born + a.count*a.clock }

// within is what of each is within reach.
func (a *ages) within() int64 {
	return a.nearBorn + a.near*a.clock + (a.count-a.near)*(a.window-1)
}
