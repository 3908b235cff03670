package leaktest

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestUnclosedDescriptorsAreListed(t *testing.T) {
	before := openDescriptors()
	if left := unclosedDescriptors(before, 0); len(left) != 0 {
		t.Errorf("leftOver: got %q, want nothing", left)
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	left := unclosedDescriptors(before, 20*time.Millisecond)
	if len(left) != 1 || !strings.HasSuffix(left[0], " /dev/null") {
		t.Errorf("leftOver: got %q, want /dev/null", left)
	}
	time.AfterFunc(20*time.Millisecond, func() { f.Close() })
	if left := unclosedDescriptors(before, time.Minute); len(left) != 0 {
		t.Errorf("leftOver after the close: got %q, want nothing", left)
	}
}
