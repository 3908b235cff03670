package uverbs

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"

	"verbena/uapi"
)

// CommandTrace is a readable description of one command.
type CommandTrace struct {
	// Name is the name of the command or method. Name is empty for a doorbell and for a malformed call.
	Name string
	// Request and Response describe the core parts of the command, or are empty if these are unknown.
	Request, Response string
}

// Tracer is implemented by a Caller whose commands can be traced.
type Tracer interface {
	// CommandTrace returns the trace record of the current command, or nil if tracing is off. CommandTrace may not
	// sleep.
	CommandTrace() *CommandTrace
}

// commandTraceOf returns the trace record of a command of c, or nil.
func commandTraceOf(c Caller) *CommandTrace {
	if t, ok := c.(Tracer); ok {
		return t.CommandTrace()
	}
	return nil
}

func (t *CommandTrace) setName(name string) {
	if t != nil {
		t.Name, t.Request = name, ""
	}
}

// recordNumber records a number that the caller receives in an attribute.
func (t *CommandTrace) recordNumber(id uapi.AttrID, v uint64) {
	if t == nil {
		return
	}
	sep := "{"
	if list, ok := strings.CutSuffix(t.Response, "}"); ok {
		t.Response, sep = list, ", "
	}
	t.Response += fmt.Sprintf("%s%d: %#x}", sep, id, v)
}

// decodeNumber returns the value of an output that has the size of a number.
func decodeNumber(b []byte) (uint64, bool) {
	switch len(b) {
	case 4:
		return uint64(binary.NativeEndian.Uint32(b)), true
	case 8:
		return binary.NativeEndian.Uint64(b), true
	}
	return 0, false
}

// formatFields formats the fields of a structure of the ABI. formatFields omits reserved fields. formatFields omits
// zeros, except in handles and numbers.
func formatFields(v any) string {
	var b strings.Builder
	formatFieldsTo(&b, reflect.ValueOf(v))
	return b.String()
}

func formatFieldsTo(b *strings.Builder, v reflect.Value) {
	b.WriteByte('{')
	sep := ""
	for i := range v.NumField() {
		name, f := v.Type().Field(i).Name, v.Field(i)
		counts := strings.HasSuffix(name, "Handle") || strings.HasSuffix(name, "Num")
		if name == "Response" || name == "_" || strings.Contains(name, "Reserved") || f.IsZero() && !counts {
			continue
		}
		b.WriteString(sep + name + ": ")
		sep = ", "
		if !f.CanInterface() {
			b.WriteByte('?')
			continue
		}
		_, named := f.Interface().(fmt.Stringer)
		switch {
		case named:
			fmt.Fprint(b, f.Interface())
		case f.Kind() == reflect.Struct:
			formatFieldsTo(b, f)
		case f.Kind() == reflect.Uint64, f.Kind() == reflect.Array:
			fmt.Fprintf(b, "%#x", f.Interface())
		default:
			fmt.Fprint(b, f.Interface())
		}
	}
	b.WriteByte('}')
}

// formatAttributes formats the attributes of a method.
func formatAttributes(attrs []attribute) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, a := range attrs {
		if i > 0 {
			b.WriteString(", ")
		}
		if fmt.Fprintf(&b, "%d: ", a.AttrID); a.Len <= 8 {
			fmt.Fprintf(&b, "%#x", a.Data)
		} else {
			fmt.Fprintf(&b, "%d bytes", a.Len)
		}
	}
	b.WriteByte('}')
	return b.String()
}
