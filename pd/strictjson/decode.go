package strictjson

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Limits bound one Decode.
type Limits struct {
	// Bytes is the longest text that is looked at; 0 means pd.MaxControlBytes.
	Bytes int
	// Defects is how many defects are collected before the walk gives up; 0
	// means one. Only unknown names, missing names, nulls and values of the wrong
	// kind can be collected; anything else ends the walk.
	Defects int
	// AllowUnknown skips names that the type does not have, for a text of which
	// only a part is wanted. The syntax is checked all the same.
	AllowUnknown bool
}

// Decode reads data, one JSON value, into v, a non-nil pointer. The error is an
// *Error, or Errors when several defects were asked for and found. After an
// error that holds schema defects only, the fields without a defect are filled;
// after any other error v is unspecified. Nothing in v aliases data.
func Decode(data []byte, v any, l Limits) error {
	target := reflect.ValueOf(v)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		panic(fmt.Sprintf("strictjson: Decode wants a non-nil pointer, got %T", v))
	}
	if l.Bytes == 0 {
		l.Bytes = pd.MaxControlBytes
	}
	if len(data) > l.Bytes {
		return &Error{Text: fmt.Sprintf("the text has %d bytes, the limit is %d", len(data), l.Bytes), Final: true}
	}
	s := shapeOf(target.Type().Elem())
	w := walker{data: data, limits: l}
	if err := w.run(s); err != nil {
		if w.schemaOnly() {
			// The errors say what is wrong; encoding/json fills what is right,
			// because it skips a value that does not fit and goes on.
			_ = json.Unmarshal(data, v)
		}
		return err
	}
	if unmarshal(data, v) == nil {
		return nil
	}
	// The walk found the text well formed and of the right kinds, so a custom
	// type refused its value. Ask each of them, to say which and why.
	w = walker{data: data, limits: l, explain: true}
	err := w.run(s)
	if err == nil {
		err = &Error{Text: "a value does not fit its field"}
	}
	for _, e := range Defects(err) {
		e.Final = true
	}
	return err
}
