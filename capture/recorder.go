package capture

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"verbena/link"
)

// Options configure a Recorder. The zero value records everything until Close.
type Options struct {
	Filter *Filter
	// Count ends the recording after so many packets; 0: never.
	Count uint64
	// Buffer is how many bytes may wait to be written; 0: 32 MiB.
	Buffer int
	// Comment is that of the file.
	Comment string
}

const (
	defaultBuffer = 32 << 20
	// recordCost is what a packet counts for in the buffer beside its bytes.
	recordCost = 256
	// flushPeriod is how long a packet may wait, so that a live display is live.
	flushPeriod = 100 * time.Millisecond
	// reorderTime: a packet is written when it is so old, as one with an earlier time may still come.
	reorderTime = 20 * time.Millisecond
)

// Summary is what a recording came to, in packets.
type Summary struct {
	Packets uint64 `json:"packets"` // in the file
	Dropped uint64 `json:"dropped"` // that the filter let pass, and for which there was no room
}

// Recorder writes packets to a file. It is safe for concurrent use.
type Recorder struct {
	opts Options
	w    *pcapgo.NgWriter // nil until there is an interface; the goroutine's
	to   io.Writer

	over   atomic.Bool   // nothing more is taken
	ending chan struct{} // closed by Close
	done   chan struct{} // closed when over by itself
	ended  chan struct{} // closed when the goroutine has returned
	full   chan struct{} // the buffer is half full
	once   sync.Once

	mu         sync.Mutex
	taken      uint64 // packets, up to Count
	interfaces []*tap
	filled     batch

	// The goroutine's.
	spare   batch
	pending []record // that are too young, with bytes of their own
	frame   []byte
	known   int // interfaces in the file
	summary Summary
	err     error
}

// batch is a buffer of packets.
type batch struct {
	records []record
	bytes   []byte
}

type record struct {
	link.Tapped     // without Data
	from, to    int // in the bytes of the batch
	tap         *tap
}

// tap is an interface of the file.
type tap struct {
	r                 *Recorder
	id                int
	name, description string
	start             time.Time
	seen              atomic.Uint64 // that the filter let pass
	dropped           atomic.Uint64
}

// New starts a recording to w, which is written to by a goroutine of the Recorder. The caller must Close it.
func New(w io.Writer, opts Options) *Recorder {
	if opts.Buffer == 0 {
		opts.Buffer = defaultBuffer
	}
	r := &Recorder{
		opts: opts, to: w,
		ending: make(chan struct{}), done: make(chan struct{}), ended: make(chan struct{}), full: make(chan struct{}, 1),
	}
	// All of it now, though hardly any is touched: growing would copy while a device waits.
	for _, b := range []*batch{&r.filled, &r.spare} {
		*b = batch{make([]record, 0, opts.Buffer/recordCost+1), make([]byte, 0, opts.Buffer)}
	}
	go r.run()
	return r
}

// Interface makes an interface of the file, and returns the tap for its packets.
func (r *Recorder) Interface(name, description string) link.Tap {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &tap{r: r, id: len(r.interfaces), name: name, description: description, start: time.Now()}
	r.interfaces = append(r.interfaces, t)
	return t
}

// Done is closed when the recording has ended by itself: it has reached its count, or cannot be written.
func (r *Recorder) Done() <-chan struct{} { return r.done }

// Close ends the recording, writes what is left, and the statistics. It returns when all is written; the writer's
// first error is returned. It may sleep for as long as the writer does.
func (r *Recorder) Close() (Summary, error) {
	r.over.Store(true)
	r.once.Do(func() { close(r.ending) })
	<-r.ended
	return r.summary, r.err
}

// Packet implements link.Tap.
func (t *tap) Packet(p *link.Tapped) {
	r := t.r
	if r.over.Load() || !r.opts.Filter.Match(p) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opts.Count != 0 && r.taken == r.opts.Count {
		return
	}
	t.seen.Add(1)
	b := &r.filled
	size := len(b.bytes) + len(b.records)*recordCost
	if size+len(p.Data)+recordCost > r.opts.Buffer {
		t.dropped.Add(1)
		return
	}
	from := len(b.bytes)
	b.bytes = append(b.bytes, p.Data...)
	b.records = append(b.records, record{Tapped: *p, from: from, to: len(b.bytes), tap: t})
	b.records[len(b.records)-1].Data = nil
	r.taken++
	if size > r.opts.Buffer/2 || r.taken == r.opts.Count {
		select {
		case r.full <- struct{}{}:
		default:
		}
	}
}

// run writes until the recording is over.
func (r *Recorder) run() {
	defer close(r.ended)
	tick := time.NewTicker(flushPeriod)
	defer tick.Stop()
	for finished := false; !finished; {
		select {
		case <-tick.C:
		case <-r.full:
		case <-r.ending:
		}
		if r.flush(false) {
			r.over.Store(true)
			close(r.done)
			<-r.ending
		}
		select {
		case <-r.ending:
			finished = true
		default:
		}
	}
	r.flush(true)
	r.finish()
}

// flush writes the packets that are old enough, or all, and reports whether there are enough of them now.
func (r *Recorder) flush(all bool) (enough bool) {
	r.mu.Lock()
	b := r.filled
	r.filled, r.spare = batch{r.spare.records[:0], r.spare.bytes[:0]}, batch{}
	interfaces := r.interfaces
	enough = r.opts.Count != 0 && r.taken == r.opts.Count
	r.mu.Unlock()

	for ; r.known < len(interfaces); r.known++ {
		r.do(func() error { return r.addInterface(interfaces[r.known]) })
	}
	young := time.Now().Add(-reorderTime)
	for i := range b.records {
		b.records[i].Data = b.bytes[b.records[i].from:b.records[i].to]
	}
	list := append(r.pending, b.records...)
	slices.SortStableFunc(list, func(x, y record) int { return x.Time.Compare(y.Time) })
	n := len(list)
	if !all && !enough {
		for n > 0 && list[n-1].Time.After(young) {
			n--
		}
	}
	for i := range list[:n] {
		r.do(func() error { return r.write(&list[i]) })
	}
	rest := make([]record, 0, len(list)-n)
	for _, x := range list[n:] {
		x.Data = slices.Clone(x.Data) // the bytes of the batch are used again
		rest = append(rest, x)
	}
	r.pending = rest
	r.spare = b
	if r.w != nil {
		r.do(r.w.Flush)
	}
	return enough || r.err != nil
}

// do does a step of writing unless one has failed.
func (r *Recorder) do(step func() error) {
	if r.err == nil {
		if err := step(); err != nil {
			r.err = fmt.Errorf("write the capture: %w", err)
		}
	}
}

func (r *Recorder) addInterface(t *tap) error {
	i := pcapgo.NgInterface{
		Name: t.name, Description: t.description, Filter: r.opts.Filter.String(), OS: runtime.GOOS,
		LinkType: layers.LinkTypeRaw, TimestampResolution: 9,
	}
	if r.w != nil {
		_, err := r.w.AddInterface(i)
		return err
	}
	var err error
	r.w, err = pcapgo.NewNgWriterInterface(r.to, i, pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{
		Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "verbena capture", Comment: r.opts.Comment,
	}})
	return err
}

var flags = map[bool]*pcapgo.NgEpbFlags{
	false: {Direction: pcapgo.NgEpbFlagDirectionInbound},
	true:  {Direction: pcapgo.NgEpbFlagDirectionOutbound},
}

func (r *Recorder) write(x *record) error {
	r.frame = appendFrame(r.frame[:0], &x.Tapped)
	r.summary.Packets++
	return r.w.WritePacketWithOptions(gopacket.CaptureInfo{
		Timestamp: x.Time, CaptureLength: len(r.frame), Length: len(r.frame), InterfaceIndex: x.tap.id,
	}, r.frame, pcapgo.NgPacketOptions{Flags: flags[x.Out]})
}

// finish writes the statistics.
func (r *Recorder) finish() {
	r.mu.Lock()
	interfaces := r.interfaces
	for _, x := range r.filled.records { // of calls that had begun when it was over
		x.tap.dropped.Add(1)
	}
	r.mu.Unlock()
	now := time.Now()
	for _, t := range interfaces {
		dropped := t.dropped.Load()
		r.summary.Dropped += dropped
		r.do(func() error {
			return r.w.WriteInterfaceStats(t.id, pcapgo.NgInterfaceStatistics{
				LastUpdate: now, StartTime: t.start, EndTime: now, PacketsReceived: t.seen.Load(), PacketsDropped: dropped,
			})
		})
	}
	if r.w != nil {
		r.do(r.w.Flush)
	}
}
