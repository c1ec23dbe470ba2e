// Package edge is HTTP/1.1 in both directions: a server whose handlers learn
// at once that their client has left, and a client whose exchanges end at once
// when they are cancelled. It knows no route, no model and no role.
//
// fasthttp parses and checks message heads, the part where leniency is a
// security hole; this package is its only importer. The life of connections,
// the framing of bodies and streaming are done here, because a handler of
// fasthttp's own server is never told that its client has left, its client
// cannot be cancelled while it waits for headers, and its streams cost a
// goroutine, a pipe and a second wake-up per event.
//
// What a handler may rely on:
//   - Everything is bounded: head, body, connections, and the time for each
//     step. There is no limit on the total time of a healthy stream; a write
//     that makes no progress for WriteStall ends it.
//   - A message with two readings (two lengths, a length beside a transfer
//     coding, a folded header line) is refused with 400 and the connection is
//     closed.
//   - A client's FIN counts as leaving, half-closed or not. It is noticed
//     through EPOLLRDHUP, also while nothing is read or written.
//   - With a certificate the server speaks TLS and nothing else; the hang-up
//     watch looks at the descriptor below it. A close_notify without a FIN is not
//     noticed while nothing is read.
//   - A request with a Trust goes over TLS, and its certificate is checked before
//     a byte of the request is sent. A client shows no certificate of its own.
//   - A stream that waits costs no buffer: a relayed one waits for its upstream to
//     be readable, and what a connection needs for reading requests is given back
//     when its stream begins.
//   - Proxy environment variables are ignored.
//   - A request is sent once. Only a GET or HEAD is sent again, and only when a
//     pooled connection turned out to be closed before any byte of an answer.
//
// Goroutines: Server.Serve runs the accept loop in its caller, one goroutine
// per connection (which also runs the handler and writes its stream), one more
// while its TLS handshake lasts, and one for the hang-up watch; all have ended
// when Serve returns. The client starts none, apart from the one that
// context.AfterFunc needs to cancel an exchange and the one of crypto/tls that
// cancels a handshake and ends with it.
package edge
