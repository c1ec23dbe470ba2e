// Package fault tests what is left of a request, and of everybody else's, when
// processes and networks fail under it: processes that are killed or stopped,
// networks that lose what they are given, writes that land late, clients that
// leave in crowds.
//
// Every test runs the built programs and looks at them from outside, as an
// operator would. Whatever happens, a client gets its exact text or one explicit
// error; nodes that live give everything back, or say what they hold and why;
// and afterwards ten of ten requests are answered.
package fault
