package perfettotest

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// definitions lists the fields of traces that package perfetto writes, as Perfetto publishes them in
// protos/perfetto/trace/perfetto_trace.proto (revision ec5d16b14b74 of 2026-08-22). The type of a field is a scalar
// type, a message of the list, or the values of an enumeration.
var definitions = []struct {
	message, field string
	number         int32
	typ            string
	repeated       bool
}{
	{"Trace", "packet", 1, "TracePacket", true},
	{"TracePacket", "timestamp", 8, "uint64", false},
	{"TracePacket", "trusted_packet_sequence_id", 10, "uint32", false},
	{"TracePacket", "track_event", 11, "TrackEvent", false},
	{"TracePacket", "track_descriptor", 60, "TrackDescriptor", false},
	{"TrackDescriptor", "uuid", 1, "uint64", false},
	{"TrackDescriptor", "name", 2, "string", false},
	{"TrackDescriptor", "parent_uuid", 5, "uint64", false},
	{"TrackDescriptor", "counter", 8, "CounterDescriptor", false},
	{"TrackDescriptor", "child_ordering", 11, "ChildTracksOrdering", false},
	{"TrackDescriptor", "sibling_order_rank", 12, "int32", false},
	{"CounterDescriptor", "unit_name", 6, "string", false},
	{"TrackEvent", "debug_annotations", 4, "DebugAnnotation", true},
	{"TrackEvent", "type", 9, "Type", false},
	{"TrackEvent", "track_uuid", 11, "uint64", false},
	{"TrackEvent", "name", 23, "string", false},
	{"TrackEvent", "counter_value", 30, "int64", false},
	{"TrackEvent", "flow_ids", 47, "fixed64", true},
	{"DebugAnnotation", "uint_value", 3, "uint64", false},
	{"DebugAnnotation", "string_value", 6, "string", false},
	{"DebugAnnotation", "name", 10, "string", false},
}

// enumerations lists the values of the enumerations, from 0 on.
var enumerations = map[string][]string{
	"ChildTracksOrdering": {"UNKNOWN", "LEXICOGRAPHIC", "CHRONOLOGICAL", "EXPLICIT"},
	"Type": {"TYPE_UNSPECIFIED", "TYPE_SLICE_BEGIN", "TYPE_SLICE_END", "TYPE_INSTANT", "TYPE_COUNTER",
		"TYPE_STATE"},
}

var scalars = map[string]descriptorpb.FieldDescriptorProto_Type{
	"int32": descriptorpb.FieldDescriptorProto_TYPE_INT32, "int64": descriptorpb.FieldDescriptorProto_TYPE_INT64,
	"uint32": descriptorpb.FieldDescriptorProto_TYPE_UINT32, "uint64": descriptorpb.FieldDescriptorProto_TYPE_UINT64,
	"fixed64": descriptorpb.FieldDescriptorProto_TYPE_FIXED64, "string": descriptorpb.FieldDescriptorProto_TYPE_STRING,
}

// traceMessage describes the message Trace.
var traceMessage = describeTrace()

func describeTrace() protoreflect.MessageDescriptor {
	file := &descriptorpb.FileDescriptorProto{Name: proto.String("trace.proto"), Syntax: proto.String("proto2")}
	messages := map[string]*descriptorpb.DescriptorProto{}
	for _, d := range definitions {
		m := messages[d.message]
		if m == nil {
			m = &descriptorpb.DescriptorProto{Name: &d.message}
			messages[d.message] = m
			file.MessageType = append(file.MessageType, m)
		}
		f := &descriptorpb.FieldDescriptorProto{Name: &d.field, Number: &d.number,
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
		if d.repeated {
			f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		}
		switch typ, ok := scalars[d.typ]; {
		case ok:
			f.Type = &typ
		case enumerations[d.typ] != nil:
			f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_ENUM.Enum(), proto.String("."+d.typ)
		default:
			f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), proto.String("."+d.typ)
		}
		m.Field = append(m.Field, f)
	}
	for name, values := range enumerations {
		e := &descriptorpb.EnumDescriptorProto{Name: &name}
		for i, v := range values {
			e.Value = append(e.Value, &descriptorpb.EnumValueDescriptorProto{Name: &v, Number: proto.Int32(int32(i))})
		}
		file.EnumType = append(file.EnumType, e)
	}
	d, err := protodesc.NewFile(file, nil)
	if err != nil {
		panic(err)
	}
	return d.Messages().ByName("Trace")
}

// message is a message of a trace. Its methods take names of fields.
type message struct{ protoreflect.Message }

func (m message) field(name protoreflect.Name) protoreflect.FieldDescriptor {
	return m.Descriptor().Fields().ByName(name)
}

func (m message) has(name protoreflect.Name) bool { return m.Has(m.field(name)) }

func (m message) text(name protoreflect.Name) string { return m.Get(m.field(name)).String() }

// number returns an integer as 64 bits.
func (m message) number(name protoreflect.Name) uint64 {
	switch v := m.Get(m.field(name)).Interface().(type) {
	case uint32:
		return uint64(v)
	case uint64:
		return v
	case int64:
		return uint64(v)
	case protoreflect.EnumNumber:
		return uint64(v)
	default:
		panic(fmt.Sprintf("field %s has type %T", name, v))
	}
}

func (m message) message(name protoreflect.Name) (message, bool) {
	return message{m.Get(m.field(name)).Message()}, m.has(name)
}

func (m message) list(name protoreflect.Name) (all []message) {
	l := m.Get(m.field(name)).List()
	for i := range l.Len() {
		all = append(all, message{l.Get(i).Message()})
	}
	return all
}

// check returns an error if the message or a message in it has an undefined field or enumeration value.
func (m message) check() (err error) {
	if u := m.GetUnknown(); len(u) > 0 {
		return fmt.Errorf("%s has undefined fields or values: % x", m.Descriptor().Name(), []byte(u))
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Enum() != nil && f.Enum().Values().ByNumber(v.Enum()) == nil:
			err = fmt.Errorf("%s has undefined value %d of %s", m.Descriptor().Name(), v.Enum(), f.Name())
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				if err == nil {
					err = message{v.List().Get(i).Message()}.check()
				}
			}
		default:
			err = message{v.Message()}.check()
		}
		return err == nil
	})
	return err
}
