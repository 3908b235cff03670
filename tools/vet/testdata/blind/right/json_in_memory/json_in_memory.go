package json_in_memory

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"verbena/ib"
)

type stats struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *stats) record(e ib.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	json.NewEncoder(&s.buf).Encode(map[string]int{"port": e.Port})
	w := bufio.NewWriter(&s.buf)
	fmt.Fprintf(w, "%v\n", e.Type)
	w.Flush()
}

func (s *stats) save(path string) error {
	s.mu.Lock()
	b := bytes.Clone(s.buf.Bytes())
	s.mu.Unlock()
	return os.WriteFile(path, b, 0o600)
}

func Watch(d *ib.Device) *stats {
	s := &stats{}
	d.OnEvent(s.record)
	return s
}
