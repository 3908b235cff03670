package embed_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"verbena/verbs"
)

// TestOutOfRangeNumberIsRejected checks that a number that exceeds its field is rejected and not truncated.
func TestOutOfRangeNumberIsRejected(t *testing.T) {
	dev := openDevice(t, newSoftwareStack(t), "")
	e := newTestEnd(t, dev, verbs.QPInit{})
	here, err := e.qp.Local()
	if err != nil {
		t.Fatal(err)
	}
	srq, err := e.pd.CreateSRQ(4, 1)
	if err != nil {
		t.Fatal(err)
	}
	ah := func(a verbs.AHAttr) error {
		a.GID = here.GID
		_, err := e.pd.CreateAH(a)
		return err
	}
	for want, err := range map[string]error{
		"GID index 257":        ah(verbs.AHAttr{SGIDIndex: 257}),
		"GID index -1":         ah(verbs.AHAttr{SGIDIndex: -1}),
		"port 257":             ah(verbs.AHAttr{SGIDIndex: 1, Port: 257}),
		"hop limit -1":         ah(verbs.AHAttr{SGIDIndex: 1, HopLimit: -1}),
		"GID index 258":        e.qp.Modify(verbs.QPAttr{AH: verbs.AHAttr{SGIDIndex: 258}}, verbs.AttrAH),
		"port 259":             e.qp.Prepare(verbs.Path{Port: 259}),
		"256 READs":            e.qp.ConnectVia(here, verbs.Path{Reads: 256}),
		"-1 READs":             e.qp.ConnectVia(here, verbs.Path{Reads: -1}),
		"to 4294967301":        e.cq.Resize(1<<32 + 5),
		"limit of an SRQ":      srq.SetLimit(1 << 32),
		"resize an SRQ":        srq.Resize(1<<32 + 8),
		"resize a CQ to -1":    e.cq.Resize(-1),
		"create a CQ of -1":    errorOf(dev.CreateCQ(-1, nil)),
		"port 0":               errorOf(dev.QueryPort(0)),
		"allocate -5 bytes":    errorOf(e.pd.Alloc(-5, 0)),
		"register 0 bytes":     errorOf(e.pd.RegSlice(nil, 0)),
		"belong to the same":   errorOf(e.pd.CreateQP(verbs.QPInit{})),
		"at most 65535":        errorOf(e.pd.CreateQP(verbs.QPInit{SendCQ: e.cq, SendWRs: 1 << 20})),
		"no global route head": errorOf(e.pd.AddressOf(&verbs.WC{}, nil, 0)),
	} {
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), want) {
			t.Errorf("error: got %v, want EINVAL with text %q", err, want)
		}
	}
}

// TestErrorNamesCommandOnce checks that an error names the command at most once.
func TestErrorNamesCommandOnce(t *testing.T) {
	dev := openDevice(t, newSoftwareStack(t), "")
	_, err := dev.CreateCQ(1<<20, nil)
	if err == nil || strings.Count(err.Error(), "CREATE_CQ") != 1 || !strings.Contains(err.Error(), "at most 1048575") {
		t.Errorf("got %v", err)
	}
}
