package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// meanings say what a code means to the person who reads it, and what to do.
var meanings = map[pd.Code]string{
	pd.CodeInternal:             "A bug, or a failure that nothing more is known of. The text and the log say more.",
	pd.CodeInvalidRequest:       "A field is missing, malformed or out of range. The text names it.",
	pd.CodeUnsupported:          "The field is valid and this service does not do it (sampling, n > 1, …).",
	pd.CodeNotFound:             "No such path here.",
	pd.CodeBodyTooLarge:         "The message is longer than its bound.",
	pd.CodeBusy:                 "Every slot of the node is taken. Nodes do not queue; try again or elsewhere.",
	pd.CodeNoPair:               "The router has no healthy pair with a free slot.",
	pd.CodeDraining:             "The process is shutting down and admits nothing new.",
	pd.CodeNodeGated:            "A write into the node's memory may still land; it admits nothing until that is settled. What runs goes on.",
	pd.CodeVersionMismatch:      "The peer speaks another version of the control protocol. Update one of them.",
	pd.CodeStaleBoot:            "The message is for an earlier life of the node, which has restarted since.",
	pd.CodeContractMismatch:     "The nodes of the pair differ in the data contract; the text names the field.",
	pd.CodeRegistryMismatch:     "The peer's registered memory does not fit the contract.",
	pd.CodeIdentity:             "A field of the fence is not the one this node holds, or another node answered.",
	pd.CodeUnknownKey:           "The handoff is not here. That says nothing about memory.",
	pd.CodeDuplicateHandoff:     "The handoff id was used before; each attempt needs a new one.",
	pd.CodeHandoffTerminal:      "The handoff has ended; the text says how.",
	pd.CodeReplayMismatch:       "A repeated reserve has other content than the first.",
	pd.CodeInvalidLength:        "Prompt, output limit and model limit do not fit together.",
	pd.CodeInvalidDigest:        "A digest is not that of what it digests.",
	pd.CodeCapacityExhausted:    "Not enough free pages. The text lists group, need and free.",
	pd.CodeBootstrapExhausted:   "No free bootstrap slot.",
	pd.CodeOutOfOrder:           "A chunk came before the one before it; send them in order.",
	pd.CodeInvalidPlan:          "The manifest differs from what decode plans itself. Nothing was written.",
	pd.CodeIncomplete:           "Commit came before every unit was reported Done; send the missing facts.",
	pd.CodeUncertain:            "It is not known whether a write has ended. Its memory is held.",
	pd.CodeConflict:             "Two facts about one unit contradict each other. Its memory is held.",
	pd.CodeCommitted:            "The handoff is committed; it can be cancelled like any request, and not aborted.",
	pd.CodeDeadline:             "The time for one operation or for the request is over.",
	pd.CodePeerUnreachable:      "No connection to the peer, or it ended before the answer.",
	pd.CodeAborted:              "Ended on request; the text says whose.",
	pd.CodeClientGone:           "The client closed its connection.",
	pd.CodeIntegrity:            "Bytes that were read are not the bytes that were written.",
	pd.CodeTransferFailed:       "A write has certainly not happened, or not whole. The request fails; the memory is free again.",
	pd.CodeOwnerLost:            "A process that owned cache memory has ended.",
	pd.CodeFrozen:               "Regions cannot be added after the first connection to a peer.",
	pd.CodeInvalidConfig:        "The configuration has a defect; the text gives field, line and column. Nothing was started.",
	pd.CodeMalformed:            "The text is not the JSON, or the HTTP, that is expected here.",
	pd.CodeUnauthorized:         "The token or secret is missing or wrong.",
	pd.CodeModelNotFound:        "The service does not serve a model of this name.",
	pd.CodeContextLength:        "Prompt plus output limit exceed what the model holds.",
	pd.CodeDecodeExhausted:      "Decode has no page left and nothing that runs can free one.",
	pd.CodeMethodNotAllowed:     "The path takes another method; Allow names it.",
	pd.CodeRouteMissing:         "A node of a pair takes generation requests from its router only.",
	pd.CodeUpstreamInterrupted:  "The node's answer broke off before its end.",
	pd.CodeNativeLibraryMissing: "The data plane's library was not found; use \"provider\": \"simulator\" to run without it.",
	pd.CodeFenced:               "The decode node made its data plane anew while the request was on its way. Nothing is in doubt; send it again.",
	pd.CodeSessionStale:         "The decode node has a new data plane or a new life; prefill opens a new session and goes on.",
	pd.CodeInvalidModelOutput:   "The model's text has not the form that was asked for: a tool call or reasoning that cannot be read. The same request has the same answer.",
}

// TestErrorsPage generates docs/errors.md.
func TestErrorsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Errors

Generated by ` + "`make gen`" + ` from pd.Codes(); do not edit. Callers branch on codes and never on text. Names cross the wire, numbers the C ABI;
both are append-only.

- *retry*: the same request may succeed later or on another pair.
- *API*: HTTP status of the OpenAI API. The body is
  ` + "`{\"object\":\"error\",\"message\":M,\"error\":{\"message\":M,\"type\":T,\"param\":null,\"code\":C}}`" + `. Once a stream has begun, the same
  body is an event of the stream.
- *control*: HTTP status of the control port. The body is ` + "`{\"error\":{\"code\",\"message\",\"retryable\",\"definite\"}}`" + `.
- *definite*: nothing was changed and nothing will be by the refused message.

| no. | code | retry | API | control | definite | meaning |
|--:|---|---|--:|--:|---|---|
`)
	codes := pd.Codes()
	require.Len(t, meanings, len(codes))
	for _, code := range codes {
		meaning, ok := meanings[code]
		require.True(t, ok, "%v has no meaning", code)
		status, f := wire.FailureOf(code)
		fmt.Fprintf(&b, "| %d | %s | %s | %d | %d | %s | %s |\n", int(code), code, yes(code.Retryable()), openai.HTTPStatus(code), status, yes(f.Error.Definite), meaning)
	}
	golden(t, "../../docs/errors.md", []byte(b.String()))
}

// TestErrorsHeader generates the codes of the C interface.
func TestErrorsHeader(t *testing.T) {
	var b strings.Builder
	b.WriteString(`/*
 * Why a call of libpypto-pd failed. Generated by make gen from pd.Codes(); do
 * not edit. Numbers are append-only.
 */
#ifndef PYPTO_PD_CODES_H
#define PYPTO_PD_CODES_H

enum {
`)
	for _, code := range pd.Codes() {
		fmt.Fprintf(&b, "\t/* %s */\n\tPYPTO_PD_%s = %d,\n", meanings[code], code, int(code))
	}
	b.WriteString("};\n\n#endif\n")
	golden(t, "../../include/pypto/pd_codes.h", []byte(b.String()))
}

func yes(v bool) string {
	if v {
		return "yes"
	}
	return ""
}
