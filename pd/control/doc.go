// Package control carries control protocol version 2 between nodes and from
// routers to nodes: one server that turns calls into methods of a Service, and
// one client with a method per message. pd/wire says what a message is; pd/edge
// moves the bytes.
//
// It knows no handoff and no lease, decides nothing and holds no state beyond
// its connections and the counters of proofs. Everything is bounded: the message, the connections, and a
// call by its caller's context. What is not a well-formed message of this
// version is refused here and never reaches the Service.
//
// With a shared secret (secret.go) each call proves that it comes from the
// deployment and each answer that it is for that call: an HMAC over message,
// caller's boot, receiver's boot and a counter, of which the receiver hears each
// once. A proof is good for one life of the receiver, so nothing need be kept over
// a restart. It hides nothing and is off by default.
//
// Goroutines: Server.Serve runs those of edge.Server and has ended them when it
// returns. The client starts none.
package control
