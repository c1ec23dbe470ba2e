// Package arch holds the shape of the repository as tests: who may import whom
// (order.txt), through which door foreign code comes in (doors.txt), which
// entries the top level has, that files stay short and that every exported name
// is described. Changing order.txt or doors.txt changes the architecture; do it
// together with docs/architecture.md.
//
// It reads source files and imports nothing of the project.
package arch
