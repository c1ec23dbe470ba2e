// Package openai is the OpenAI API as data: what a request body says, without
// encoding it again, and the bodies of answers, chunks, model lists and errors.
//
// Unknown fields are allowed, null means absent, and of equal keys the last one
// counts, as in the engines. Everything else is checked, and an error names the
// field that is wrong. errors.go holds the one table from pd.Code to HTTP
// status and error type.
//
// The package is pure: it opens no connection, knows no node and no engine, and
// starts no goroutine.
package openai
