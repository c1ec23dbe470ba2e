// Package pdnode puts one node with a role together: journal, boot lock,
// owners, shell, control port and operators' socket, around an engine that the
// caller brings. pypto-serving brings the reference engine, libpypto-pd a host
// that is written in another language.
//
// It holds no logic of its own: what a node does is in pd/node and pd/shell.
//
// # Goroutines
//
// Open starts the journal's writer; Run serves the control port and the
// operators' socket until the shell's loop has ended. Close ends the writer.
package pdnode
