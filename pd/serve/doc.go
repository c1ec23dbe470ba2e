// Package serve is a node's HTTP side: the OpenAI API over an engine.Generator,
// which the combined engine and both sides of a pair satisfy alike.
//
// With a role a generation is accepted only with a router's X-PD-* headers that
// name this very life of this node; without a role those headers mean nothing.
// Prefill answers one JSON object when everything is handed over and given
// back. Decode does not tokenize: it takes the request from prefill and gives
// the client's answer. A stream's headers leave when the generator has decided
// that the request runs; what fails later is one explicit error event.
//
// What a client asks of the output (response_format, tools) goes to the engine
// as one constraint, and calls of tools are read out of the engine's text here.
//
// It knows no pages, no peers' addresses and no control protocol, and it starts
// no goroutine: calls run on the edge's connection goroutines.
package serve
