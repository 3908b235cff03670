package umem

import (
	"bytes"
	"errors"
	"math"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// TestListEqualsOneRange compares a list of ranges with one range that has the same bytes. Reads and writes must have
// the same results.
func TestListEqualsOneRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size, iova = 4096, 0x7000_0001
		mem := make([]byte, size)
		for i := range mem {
			mem[i] = patternByte(i)
		}
		space := NewLocal()
		base, err := space.Add(mem)
		if err != nil {
			t.Fatal(err)
		}
		var list []Range
		var place []int // offsets in mem of the bytes of the region
		for range rapid.IntRange(2, 6).Draw(t, "ranges") {
			at := rapid.IntRange(0, size-1).Draw(t, "at")
			n := rapid.IntRange(0, min(size-at, 300)).Draw(t, "n")
			list = append(list, Range{base + uint64(at), uint64(n)})
			for i := range n {
				place = append(place, at+i)
			}
		}
		r, err := GetList(space, nil, list, iova, true)
		if err != nil {
			t.Fatal(err)
		}
		if r.Len() != uint64(len(place)) {
			t.Fatalf("length: got %d, want %d", r.Len(), len(place))
		}
		from := rapid.IntRange(0, len(place)).Draw(t, "from")
		n := rapid.IntRange(0, len(place)-from).Draw(t, "length")
		split := rapid.IntRange(0, n).Draw(t, "split")
		buf := make([]byte, n)
		if err := r.ReadV([][]byte{buf[:split], nil, buf[split:]}, iova+uint64(from)); err != nil {
			t.Fatal(err)
		}
		for i := range buf {
			if want := mem[place[from+i]]; buf[i] != want {
				t.Fatalf("byte %d: got %#x, want %#x", from+i, buf[i], want)
			}
			buf[i] = ^buf[i] + byte(i)
		}
		want := bytes.Clone(mem)
		for i := range buf { // ranges may overlap, and the last write determines the byte
			want[place[from+i]] = buf[i]
		}
		if err := r.WriteV([][]byte{buf[:split], buf[split:]}, iova+uint64(from)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mem, want) {
			t.Fatal("memory after a write: got the bytes at wrong addresses, want them in the listed ranges")
		}
		for _, err := range []error{
			r.ReadV([][]byte{make([]byte, len(place)-from+1)}, iova+uint64(from)), r.WriteV([][]byte{{1}}, iova-1),
		} {
			if !errors.Is(err, ErrRange) {
				t.Fatalf("outside: got %v, want %v", err, ErrRange)
			}
		}
	})
}

// flawedSpace is a Space with an unmapped range and read-only memory.
type flawedSpace struct {
	Space
	hole, readOnly uint64
}

func (f flawedSpace) Check(addr, length uint64, write bool) error {
	if in := func(at uint64) bool { return at-addr < length }; in(f.hole) || write && in(f.readOnly) {
		return ErrFault
	}
	return nil
}

func TestListErrors(t *testing.T) {
	p := PageSize
	space := flawedSpace{hole: 50 * p, readOnly: 60 * p}
	for _, test := range []struct {
		name  string
		list  []Range
		write bool
		pages uint64
		want  error
	}{
		{"none", nil, true, 0, nil},
		{"only empty ranges", []Range{{p, 0}, {0, 0}}, true, 0, nil},
		{"a repeated range is charged twice", []Range{{p, p}, {p, p}}, true, 2, nil},
		{"pages that are touched", []Range{{p - 1, 2}, {7, 3}, {9*p + 1, p}}, true, 5, nil},
		{"the limit", []Range{{0, 8 * p}, {0, 1}}, true, 0, ErrLimit},
		{"not mapped", []Range{{p, p}, {49 * p, p + 1}}, false, 0, ErrFault},
		{"read only", []Range{{p, p}, {60 * p, 1}}, true, 0, ErrFault},
		{"to be read only", []Range{{p, p}, {60 * p, 1}}, false, 2, nil},
		{"wraps", []Range{{p, p}, {math.MaxUint64, 2}}, true, 0, ErrRange},
		{"too long together", []Range{{1, 1 << 63}, {1, 1 << 63}}, true, 0, ErrRange},
	} {
		t.Run(test.name, func(t *testing.T) {
			acct := NewAccount(func() uint64 { return 8 * p })
			r, err := GetList(space, acct, test.list, 0x1000, test.write)
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			if acct.Pages() != test.pages {
				t.Errorf("charged: got %d, want %d", acct.Pages(), test.pages)
			}
			if err == nil {
				if r.Pages() != test.pages {
					t.Errorf("pages: got %d, want %d", r.Pages(), test.pages)
				}
				r.Release()
			}
			if acct.Pages() != 0 {
				t.Errorf("charged pages after the failures: got %d, want 0", acct.Pages())
			}
		})
	}
	r, err := GetList(space, nil, []Range{{p, p}, {60 * p, 1}}, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(false); err != nil {
		t.Error("check: ", err)
	}
	if err := r.Check(true); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("check for writing: got %v, want EFAULT", err)
	}
}
