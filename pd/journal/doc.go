// Package journal writes what happened on one process for people to read: a
// log, a stream of lifecycle events, a record of the start, and the state
// journal that shows what an earlier boot left unresolved. It also reads them
// back.
//
// Files:
//
//	<root>/<run_id>/{router,p,d}/<letter>-<hash>.log
//	<root>/<run_id>/{router,p,d}/<letter>-<hash>.events.jsonl
//	<root>/<run_id>/{router,p,d}/<letter>-<hash>.startup.json
//	<root>/<run_id>/{router,p,d}/state/<letter>-<hash>.<boot>.jsonl
//
// The hash is of the process's identity, so a name is stable over restarts.
// Files have mode 0600. A log or event file that grows beyond its bound is
// moved to <name>.1, replacing an earlier one. Switching observability off
// leaves only the state folder, which is always written.
//
// Nothing here is needed for safety: a node that cannot write its journal goes
// on. Emit and the log writer never block; when the writer cannot keep up, the
// newest lines are dropped, counted and reported in a JOURNAL_DROPPED event.
// Ids, counts and durations are written; addresses of memory, prompts, tokens
// and envelopes never are.
//
// Goroutines: none of its own; the caller runs Run in one.
package journal
