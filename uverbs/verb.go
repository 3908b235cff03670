package uverbs

import (
	"slices"
	"strings"

	"verbena/uapi"
	"verbena/uapi/verb"
)

// VerbCall is a call of a verb that is about to be carried out.
type VerbCall struct {
	// Verb is the name of the verb, as that of its function in C without ibv_; see Verbs.
	Verb string
	// State is the state that modify_qp asks for, such as "rtr"; empty if it asks for none, and for other verbs.
	State string
	// Device is the name of the midlayer's device, such as rxe0.
	Device string
	// PID and Process are the number and name of the process that has opened the file.
	PID     int
	Process string
}

// OnVerb has f called before a verb is carried out, when it is known to be well-formed as far as its header and attributes
// go, and nothing has been done for it. An error of f, which wraps a syscall.Errno, is the verb's. f may sleep: that verb alone
// waits. nil ends it, but f may still be running then. Without f it costs nothing.
//
// Doorbells, posting and polling are not verbs in this sense.
func (s *Server) OnVerb(f func(VerbCall) error) {
	if f == nil {
		s.onVerb.Store(nil)
		return
	}
	s.onVerb.Store(&f)
}

// Verbs returns the names of the verbs that OnVerb is called for, sorted.
func Verbs() []string {
	var names []string
	for _, v := range verb.Table {
		if v.Name != "" {
			names = append(names, v.Name)
		}
	}
	slices.Sort(names)
	return names
}

// CanonicalVerb returns the name that OnVerb reports for a verb, which may have others, such as create_cq_ex. It reports false for
// an unknown name.
func CanonicalVerb(name string) (string, bool) {
	for _, v := range verb.Table {
		if v.Name != "" && (v.Name == name || slices.Contains(v.Aliases, name)) {
			return v.Name, true
		}
	}
	return name, false
}

// announce calls the function of OnVerb.
func (c *call) announce() error {
	f := c.f.dev.srv.onVerb.Load()
	if f == nil || c.verb == nil || c.verb.Name == "" {
		return nil
	}
	v := VerbCall{Verb: c.verb.Name, Device: c.f.dev.ib.Name(), PID: c.f.proc.PID(), Process: c.f.proc.Name()}
	if v.Verb == "modify_qp" {
		if m, _ := uapi.DecodePrefix[uapi.ModifyQP](c.in); m.AttrMask&uapi.QPAttrState != 0 {
			v.State = strings.ToLower(uapi.QPState(m.QPState).String())
		}
	}
	return (*f)(v)
}
