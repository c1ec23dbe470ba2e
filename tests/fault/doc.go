// Package fault tests what is left of a request, and of everybody else's, when
// processes and networks fail under it: processes that are killed or stopped,
// networks that lose what they are given, writes that land late, clients that
// leave in crowds.
//
// Every test runs the built programs and looks at them from outside, as an
// operator would. Whatever happens, a client gets its exact text or one explicit
// error; nodes that live give everything back, or say what they hold and why;
// and afterwards ten of ten requests are answered.
//
// Tests claim no time but that an error comes before any timeout could have made
// it; how long it took is printed. Nodes are patient where no timeout is meant,
// and a request whose moment has passed unseen is let through, so that a busy
// machine makes the tests slower and nothing else. The run for the record of
// writes that land late, 1,000 of each kind, takes about ten minutes:
//
//	go test ./tests/fault -run LateWrite -fault.rounds 1000 -timeout 30m -v
package fault
