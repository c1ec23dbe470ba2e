package fleet

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
)

// SessionHeader carries the id of a conversation in both directions.
const SessionHeader = "X-Session-Id"

// sessionField is the field of a body that may carry it.
const sessionField = "session_id"

// maxSessionBytes bounds an id.
const maxSessionBytes = 128

// KeyOptions are further places that may name a conversation, for clients that
// never send an id back. All are off by default.
type KeyOptions struct {
	// Fields are top-level string fields of the body, such as prompt_cache_key or
	// user, in the order in which they count. Their values are hashed: they may be
	// of any form, and personal.
	Fields []string
	// Cookie is the name of a cookie that holds an id.
	Cookie string
}

// SessionRequest is what of a request can name its conversation.
type SessionRequest struct {
	// Headers are the values of SessionHeader lines, in order; the first counts.
	Headers []string
	// Cookies are the values of Cookie lines.
	Cookies []string
	Body    []byte
}

// Session is the id of a request's conversation.
type Session struct {
	ID string
	// Fresh: the id was made for this request.
	Fresh bool
	// Refused is the length of an id that was given and cannot be used, for the
	// log; -1 where it was no string, 0 if there was none.
	Refused int
}

// SessionOf finds the id of a request: header, then session_id of the body, then
// what the options name, else one that mint makes. It never fails: an id that
// cannot be used is replaced, and the request goes on.
func SessionOf(r SessionRequest, o KeyOptions, mint func() string) Session {
	// An empty header counts as none.
	if len(r.Headers) > 0 && r.Headers[0] != "" {
		return sessionFrom(r.Headers[0], mint)
	}
	found := topLevel(r.Body, append([]string{sessionField}, o.Fields...))
	if f := found[0]; f.present {
		if !f.isString {
			return Session{ID: mint(), Fresh: true, Refused: -1}
		}
		return sessionFrom(f.text, mint)
	}
	for _, f := range found[1:] {
		if f.isString && f.text != "" {
			sum := sha256.Sum256([]byte(f.text))
			return Session{ID: hex.EncodeToString(sum[:16])}
		}
	}
	if value := cookie(r.Cookies, o.Cookie); value != "" {
		return sessionFrom(value, mint)
	}
	return Session{ID: mint(), Fresh: true}
}

func sessionFrom(given string, mint func() string) Session {
	if validSession(given) {
		return Session{ID: given}
	}
	return Session{ID: mint(), Fresh: true, Refused: max(len(given), 1)}
}

// validSession says that an id is short and safe in a header line.
func validSession(id string) bool {
	if id == "" || len(id) > maxSessionBytes {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != ':' && c != '-' {
			return false
		}
	}
	return true
}

// NewSessionID makes an id of 128 random bits, as 32 hex digits.
func NewSessionID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func cookie(lines []string, name string) string {
	if name == "" {
		return ""
	}
	for _, line := range lines {
		for pair := range strings.SplitSeq(line, ";") {
			if k, v, ok := strings.Cut(strings.TrimSpace(pair), "="); ok && k == name {
				return strings.Trim(v, `"`)
			}
		}
	}
	return ""
}

// topField is what topLevel found of one name; the last of equal names counts,
// as in the engines.
type topField struct {
	present, isString bool
	text              string
}

// maxFieldBytes bounds the value of a field that is looked at.
const maxFieldBytes = 4096

// topLevel reads string fields at the top of a JSON object without decoding it:
// bodies carry whole transcripts. It follows strings and brackets only; a body in
// which they do not close, or that is no object, has no field. Whether the rest is
// JSON is the replica's to say.
func topLevel(body []byte, names []string) []topField {
	found := make([]topField, len(names))
	none := make([]topField, len(names))
	body = bytes.Trim(body, " \t\r\n")
	if len(body) < 2 || body[0] != '{' || body[len(body)-1] != '}' {
		return none
	}
	depth, key, atKey := 0, -1, false
	for i := 0; i < len(body); {
		switch body[i] {
		case '{', '[':
			depth++
			atKey = depth == 1
			if depth == 2 && key >= 0 {
				found[key] = topField{present: true}
				key = -1
			}
		case '}', ']':
			if depth--; depth == 0 && i != len(body)-1 {
				return none
			}
		case ',':
			if depth == 1 {
				atKey, key = true, -1
			}
		case '"':
			end := stringEnd(body, i)
			if end < 0 {
				return none
			}
			if depth == 1 {
				switch raw := body[i:end]; {
				case atKey:
					atKey, key = false, fieldIndex(raw, names)
				case key >= 0:
					text, ok := unquoted(raw)
					found[key] = topField{present: true, isString: ok, text: text}
					key = -1
				}
			}
			i = end
			continue
		case ' ', '\t', '\r', '\n', ':':
		default:
			// A number or a word.
			if depth == 1 && !atKey && key >= 0 {
				found[key] = topField{present: true}
				key = -1
			}
		}
		i++
	}
	if depth != 0 {
		return none
	}
	return found
}

// stringEnd is the offset behind the string that begins at i, or -1.
func stringEnd(b []byte, i int) int {
	for j := i + 1; ; {
		n := bytes.IndexByte(b[j:], '"')
		if n < 0 {
			return -1
		}
		j += n + 1
		back := 0
		for k := j - 2; k > i && b[k] == '\\'; k-- {
			back++
		}
		if back%2 == 0 {
			return j
		}
	}
}

// fieldIndex finds a quoted name, however it is escaped.
func fieldIndex(raw []byte, names []string) int {
	name := string(raw[1 : len(raw)-1])
	if strings.ContainsRune(name, '\\') {
		name, _ = unquoted(raw)
	}
	return slices.Index(names, name)
}

func unquoted(raw []byte) (string, bool) {
	if len(raw) > maxFieldBytes {
		// Too long for an id, and its length is what a log would tell.
		return string(raw[1:maxFieldBytes]), true
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, true
}
