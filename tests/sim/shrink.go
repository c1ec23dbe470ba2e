package sim

import "time"

// Shrink looks for the smallest world that fails like r: fewer kinds of faults,
// fewer handoffs, a shorter time in which faults happen. It runs at most limit
// worlds and returns the last one that failed, which may be r itself.
func Shrink(r Result, limit int) Result {
	s := &shrinker{best: r, left: limit}
	o := r.Options
	o.Log = nil
	// The kinds that the seed chose make the same world, without the choice.
	o.Faults, o.Exact = r.Active, true
	s.try(o)
	for smaller := true; smaller && s.left > 0; {
		smaller = s.kinds()
		smaller = s.handoffs() || smaller
		smaller = s.times() || smaller
	}
	return s.best
}

type shrinker struct {
	best Result
	left int
}

// try runs a world and keeps it if it fails in the same way.
func (s *shrinker) try(o Options) bool {
	if s.left <= 0 {
		return false
	}
	s.left--
	r := Run(o)
	if r.Name() != s.best.Name() {
		return false
	}
	s.best = r
	return true
}

func (s *shrinker) kinds() (smaller bool) {
	for _, f := range s.best.Options.Faults.Kinds() {
		o := s.best.Options
		o.Faults = o.Faults.Without(f)
		smaller = s.try(o) || smaller
	}
	return smaller
}

func (s *shrinker) handoffs() (smaller bool) {
	for step := s.best.Options.Handoffs / 2; step > 0; step /= 2 {
		for s.best.Options.Handoffs > step {
			o := s.best.Options
			o.Handoffs -= step
			if !s.try(o) {
				break
			}
			smaller = true
		}
	}
	return smaller
}

// times narrows the time in which faults happen, from both ends.
func (s *shrinker) times() (smaller bool) {
	o := s.best.Options
	if o.Until == 0 {
		o.Until = s.best.Took + time.Second
		if !s.try(o) {
			return false
		}
	}
	const fine = 10 * time.Millisecond
	for step := (s.best.Options.Until - s.best.Options.From) / 2; step > fine; step /= 2 {
		o := s.best.Options
		o.Until -= step
		smaller = s.try(o) || smaller
		o = s.best.Options
		o.From += step
		smaller = s.try(o) || smaller
	}
	return smaller
}
