package uverbs

import (
	"slices"
	"strings"

	"verbena/uapi"
	"verbena/uapi/verb"
)

// VerbCall describes a call of a verb that is about to be executed.
type VerbCall struct {
	// Verb is the name of the verb. The name is that of the C function without ibv_; see Verbs.
	Verb string
	// State is the requested state of modify_qp, such as "rtr". State is empty if no state is requested, and for other
	// verbs.
	State string
	// Device is the name of the midlayer's device, such as rxe0.
	Device string
	// PID and Process are the number and name of the process that opened the file.
	PID     int
	Process string
}

// OnVerb sets a function that is called before each verb is executed. When f is called, the header and the attributes
// of the verb have been checked, and nothing has been executed. If f returns an error, which must wrap a syscall.Errno,
// the verb returns this error. f may sleep, which delays only this verb. A nil f removes the function. The removed
// function may still be running when OnVerb returns. If there is no function, verbs have no additional cost.
//
// Doorbells, posts and polls are not verbs in this sense.
func (s *Server) OnVerb(f func(VerbCall) error) {
	if f == nil {
		s.onVerb.Store(nil)
		return
	}
	s.onVerb.Store(&f)
}

// Verbs returns the sorted names of the verbs for which OnVerb is called.
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

// CanonicalVerb returns the name that OnVerb reports for a verb. A verb may have aliases, such as create_cq_ex.
// CanonicalVerb returns false for an unknown name.
func CanonicalVerb(name string) (string, bool) {
	for _, v := range verb.Table {
		if v.Name != "" && (v.Name == name || slices.Contains(v.Aliases, name)) {
			return v.Name, true
		}
	}
	return name, false
}

// announceVerb calls the function of OnVerb.
func (c *call) announceVerb() error {
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
