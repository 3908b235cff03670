package capture

import (
	"bytes"
	"compress/gzip"
	"testing"
)

// TestVerifyRejectsNestedGzip checks that Verify accepts only one level of compression. A file can decompress to
// itself, so an unlimited number of levels might never end.
func TestVerifyRejectsNestedGzip(t *testing.T) {
	pcap := []byte{0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0} // without packets
	compress := func(b []byte) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		if _, err := z.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	once := compress(pcap)
	if _, err := Verify(bytes.NewReader(once)); err != nil {
		t.Errorf("Verify of a file compressed once: got %v, want success", err)
	}
	if _, err := Verify(bytes.NewReader(compress(once))); err == nil {
		t.Error("Verify of a file compressed twice: got success, want an error")
	}
}
