// Package relay is what both routers do with HTTP: which header lines pass a
// hop, one upstream leg that can be awaited and cancelled, and the copying of
// an answer or an event stream to the client.
//
// Body bytes are never rewritten, in either direction. Framing is made anew on
// each hop. What a router says by itself, it says with the error bodies of
// pd/openai.
//
// It knows no pair, no replica and no policy, and it starts no goroutine: a
// leg runs on its owner's.
package relay
