// Package control carries control protocol version 2 between nodes and from
// routers to nodes: one server that turns calls into methods of a Service, and
// one client with a method per message. pd/wire says what a message is; pd/edge
// moves the bytes.
//
// It knows no handoff and no lease, decides nothing and holds no state beyond
// its connections. Everything is bounded: the message, the connections, and a
// call by its caller's context. What is not a well-formed message of this
// version is refused here and never reaches the Service.
//
// Goroutines: Server.Serve runs those of edge.Server and has ended them when it
// returns. The client starts none.
package control
