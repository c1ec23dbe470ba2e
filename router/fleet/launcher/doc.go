// Package launcher runs the commands of launch slots: as processes of the
// router's own machine, or through ssh. It implements fleet.Launcher.
//
// What the commands are, and which processes a stop ends, is decided by the
// fleet package; here is how they are run, how long, and what their end means. A
// launched replica outlives the launcher and the router: it has a session of its
// own, and nothing ties its life to its parent's.
//
// A launch that fails within moments is not reported by Launch but by its exit:
// children that it has left may hold its cards, and only a stop finds them.
//
// Before a launch over ssh comes a connection of its own that does nothing. If
// it fails, the launch was not sent, so surely nothing was started: a wrong key
// or a machine that is off costs no slot. A launch that fails with ssh's own
// status after that one is uncertain.
//
// The package starts one goroutine, at the first local launch: it reaps launched
// processes that have ended and tells who launched them. Close ends it.
package launcher
