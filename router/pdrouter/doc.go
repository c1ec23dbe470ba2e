// Package pdrouter is the external PD router: it fixes one pair of a prefill
// and a decode node per request, sends both the client's own POST at once, and
// relays decode's answer.
//
// pick.go chooses, and is pure. pool.go knows what the nodes said last and which
// slots are taken; poll.go asks them. forward.go runs one request, retire.go
// makes sure that a request that did not end by itself has ended on both nodes.
//
// The router knows no memory, no page and no model. It takes addresses from
// pd.json alone. A slot is keyed by (node, boot): it is given back when its node
// has answered that the handoff is over, or is cleared with the boot; a closed
// connection alone gives nothing back.
//
// Goroutines: Run starts one poll loop per node, and Reload one for each that is added. Each request has, beside the
// edge's connection goroutine, one per leg; the prefill leg's may outlive the
// answer to the client. Each side of a request that did not end by itself has
// one until its node has confirmed the end. Run waits for all of them.
package pdrouter
