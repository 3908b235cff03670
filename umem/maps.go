package umem

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

// mapsLineSize is the number of bytes of a line that contain all needed fields: addresses, rights, offset, device and
// inode. The rest of a line with a long path is skipped.
const mapsLineSize = 4096

var mapsReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, mapsLineSize) }}

// mapsCover reads a process's list of mappings (proc_pid_maps(5)), which is sorted by address. mapsCover reads until it
// is certain whether [addr, end) is mapped without a gap. The mappings must be readable, and writable if write is set.
// If the range is mapped, span is the contiguous mapped range around it, as far as the list has been read.
func mapsCover(r io.Reader, addr, end uint64, write bool) (span mapping, covered bool, err error) {
	br := mapsReaders.Get().(*bufio.Reader)
	br.Reset(r)
	defer func() {
		br.Reset(nil)
		mapsReaders.Put(br)
	}()
	for {
		line, err := br.ReadSlice('\n')
		if err == io.EOF && len(line) == 0 {
			return span, false, nil
		}
		if err != nil && err != io.EOF && !errors.Is(err, bufio.ErrBufferFull) {
			return span, false, err
		}
		m, ok := parseMapping(line)
		if !ok {
			return span, false, fmt.Errorf("cannot parse mapping %q", bytes.TrimSpace(line))
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = br.ReadSlice('\n')
		}
		if m.end <= addr {
			continue
		}
		if m.start > addr || !m.read || write && !m.write {
			return span, false, nil
		}
		if span.end == 0 {
			span = m
		}
		span.end = m.end
		if addr = m.end; addr >= end {
			return span, true, nil
		}
	}
}

type mapping struct {
	start, end  uint64
	read, write bool
}

// parseMapping parses the start of a line: "start-end rwxp ...".
func parseMapping(line []byte) (m mapping, ok bool) {
	var rest []byte
	if m.start, rest, ok = cutHex(line, '-'); !ok {
		return m, false
	}
	if m.end, rest, ok = cutHex(rest, ' '); !ok || len(rest) < 4 || m.end < m.start {
		return m, false
	}
	m.read, m.write = rest[0] == 'r', rest[1] == 'w'
	return m, true
}

// cutHex parses a hexadecimal number that ends with sep.
func cutHex(b []byte, sep byte) (v uint64, rest []byte, ok bool) {
	for i, c := range b {
		var d byte
		switch {
		case c == sep:
			return v, b[i+1:], i > 0
		case c >= '0' && c <= '9':
			d = c - '0'
		case c >= 'a' && c <= 'f':
			d = c - 'a' + 10
		default:
			return 0, nil, false
		}
		if v>>60 != 0 {
			return 0, nil, false
		}
		v = v<<4 | uint64(d)
	}
	return 0, nil, false
}
