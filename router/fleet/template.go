package fleet

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Templates know three names: {device}, {devices} and {port}. A doubled brace is
// a literal one: {{device}} is the text {device}. Other braces, such as those of
// JSON, are plain text; another name in braces is a mistake and is refused when
// the file is read, so that a launch never meets one.

var placeholder = regexp.MustCompile(`^\{[A-Za-z_][A-Za-z0-9_.]*\}`)

// expand replaces the names that values knows. The error names the first one
// that it does not know.
func expand(text string, values map[string]string) (string, error) {
	var b strings.Builder
	// doubled counts "{{" that wait for their "}}": without one, "}}" is the end
	// of two nested JSON objects.
	doubled := 0
	for text != "" {
		switch {
		case strings.HasPrefix(text, "{{"):
			doubled++
			b.WriteByte('{')
			text = text[2:]
			continue
		case doubled > 0 && strings.HasPrefix(text, "}}"):
			doubled--
			b.WriteByte('}')
			text = text[2:]
			continue
		}
		if found := placeholder.FindString(text); found != "" && text[0] == '{' {
			value, ok := values[found[1:len(found)-1]]
			if !ok {
				return "", fmt.Errorf("unknown placeholder %.64s; want {device}, {devices} or {port}, or {%s} for the text itself", found, found)
			}
			b.WriteString(value)
			text = text[len(found):]
			continue
		}
		b.WriteByte(text[0])
		text = text[1:]
	}
	return b.String(), nil
}

// values are what the names stand for in one slot.
func (s Slot) values() map[string]string {
	return map[string]string{"device": strconv.Itoa(s.Devices[0]), "devices": joinDevices(s.Devices), "port": strconv.Itoa(s.Port)}
}

// expand is for templates that Parse has checked.
func (s Slot) expand(text string) string {
	out, err := expand(text, s.values())
	if err != nil {
		panic(fmt.Sprintf("fleet: slot %s: %v, which Parse refuses", s.Name, err))
	}
	return out
}

func (s Slot) expandAll(texts []string) []string {
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = s.expand(t)
	}
	return out
}

func joinDevices(devices []int) string {
	words := make([]string, len(devices))
	for i, d := range devices {
		words[i] = strconv.Itoa(d)
	}
	return strings.Join(words, ",")
}
