package openai

import (
	"github.com/hw-native-sys/pypto-pd/pd"
)

// The error types of the API.
const (
	typeInvalid     = "invalid_request_error"
	typeAuth        = "authentication_error"
	typeServer      = "server_error"
	typeUnavailable = "service_unavailable_error"
	// typeDecode is an execution that failed after it was admitted; as an event
	// of a stream it is all that a client gets to see of it.
	typeDecode = "pd_decode_error"
	// typeOutput is a generation whose text cannot be given to the client in the
	// form that was asked for; the same request has the same answer.
	typeOutput = "invalid_model_output"
)

type httpFacts struct {
	status int
	kind   string
}

// table is the only place that turns a code into HTTP. A 4xx is the sender's
// fault and will be refused again; a 503 may be sent again.
var table = map[pd.Code]httpFacts{
	pd.CodeInternal:             {500, typeServer},
	pd.CodeInvalidRequest:       {400, typeInvalid},
	pd.CodeUnsupported:          {400, typeInvalid},
	pd.CodeNotFound:             {404, typeInvalid},
	pd.CodeBodyTooLarge:         {413, typeInvalid},
	pd.CodeBusy:                 {503, typeUnavailable},
	pd.CodeNoPair:               {503, typeUnavailable},
	pd.CodeDraining:             {503, typeUnavailable},
	pd.CodeNodeGated:            {503, typeUnavailable},
	pd.CodeVersionMismatch:      {409, typeServer},
	pd.CodeStaleBoot:            {409, typeServer},
	pd.CodeContractMismatch:     {409, typeServer},
	pd.CodeRegistryMismatch:     {409, typeServer},
	pd.CodeIdentity:             {409, typeServer},
	pd.CodeUnknownKey:           {409, typeServer},
	pd.CodeDuplicateHandoff:     {409, typeServer},
	pd.CodeHandoffTerminal:      {409, typeServer},
	pd.CodeReplayMismatch:       {409, typeServer},
	pd.CodeInvalidLength:        {409, typeServer},
	pd.CodeInvalidDigest:        {409, typeServer},
	pd.CodeCapacityExhausted:    {503, typeUnavailable},
	pd.CodeBootstrapExhausted:   {503, typeUnavailable},
	pd.CodeOutOfOrder:           {409, typeServer},
	pd.CodeInvalidPlan:          {409, typeServer},
	pd.CodeIncomplete:           {409, typeServer},
	pd.CodeUncertain:            {503, typeDecode},
	pd.CodeConflict:             {503, typeDecode},
	pd.CodeCommitted:            {409, typeServer},
	pd.CodeDeadline:             {503, typeDecode},
	pd.CodePeerUnreachable:      {503, typeUnavailable},
	pd.CodeAborted:              {503, typeDecode},
	pd.CodeClientGone:           {499, typeInvalid},
	pd.CodeIntegrity:            {503, typeDecode},
	pd.CodeTransferFailed:       {503, typeDecode},
	pd.CodeOwnerLost:            {503, typeDecode},
	pd.CodeFrozen:               {500, typeServer},
	pd.CodeInvalidConfig:        {500, typeServer},
	pd.CodeMalformed:            {400, typeInvalid},
	pd.CodeUnauthorized:         {401, typeAuth},
	pd.CodeModelNotFound:        {404, typeInvalid},
	pd.CodeContextLength:        {400, typeInvalid},
	pd.CodeDecodeExhausted:      {503, typeDecode},
	pd.CodeMethodNotAllowed:     {405, typeInvalid},
	pd.CodeRouteMissing:         {400, typeInvalid},
	pd.CodeUpstreamInterrupted:  {502, typeDecode},
	pd.CodeNativeLibraryMissing: {500, typeServer},
	pd.CodeFenced:               {503, typeDecode},
	pd.CodeSessionStale:         {503, typeDecode},
	pd.CodeInvalidModelOutput:   {400, typeOutput},
}

// HTTPStatus is the HTTP status of a code; 500 for one that does not exist.
func HTTPStatus(c pd.Code) int {
	if f, ok := table[c]; ok {
		return f.status
	}
	return 500
}

// RetryAfter says whether an answer with this code carries Retry-After: the
// same request may succeed in a moment.
func RetryAfter(c pd.Code) bool { return HTTPStatus(c) == 503 && c.Retryable() }

// CodeOfStatus is the code for what the HTTP layer refuses by itself.
func CodeOfStatus(status int) pd.Code {
	switch status {
	case 404:
		return pd.CodeNotFound
	case 405:
		return pd.CodeMethodNotAllowed
	case 413:
		return pd.CodeBodyTooLarge
	case 503:
		return pd.CodeBusy
	}
	if status >= 500 {
		return pd.CodeInternal
	}
	return pd.CodeMalformed
}
