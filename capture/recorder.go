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

// Options is the configuration of a Recorder. The zero value records all packets until Close.
type Options struct {
	Filter *filter
	// Count is the number of packets after which the recording ends; 0 means no limit.
	Count uint64
	// Buffer is the size of the packet buffer in bytes; 0 means 32 MiB.
	Buffer int
	// Comment is the comment in the file.
	Comment string
}

const (
	defaultBuffer = 32 << 20
	// recordCost is the size charged to the buffer for a packet, in addition to the bytes of the packet.
	recordCost = 256
	// flushPeriod limits the delay of packets in the file, for live displays.
	flushPeriod = 100 * time.Millisecond
	// reorderTime is the minimum age of a packet at which it is written. Until that age, a packet with an earlier
	// timestamp may arrive.
	reorderTime = 20 * time.Millisecond
)

// recordingStats holds the numbers of packets of a recording.
type recordingStats struct {
	Packets uint64 `json:"packets"` // packets written to the file
	Dropped uint64 `json:"dropped"` // packets selected by the filter, but lost because the buffer was full
}

// Recorder writes packets to a file. Recorder is safe for concurrent use.
type Recorder struct {
	opts Options
	w    *pcapgo.NgWriter // nil without an interface; only the goroutine uses it
	to   io.Writer

	over     atomic.Bool   // no more packets are accepted
	ending   chan struct{} // closed by Close
	done     chan struct{} // closed when the recording has ended by itself
	finished chan struct{} // closed when the goroutine has returned
	full     chan struct{} // signals that the buffer is half full
	once     sync.Once

	mu         sync.Mutex
	accepted   uint64 // number of accepted packets, up to Count
	interfaces []*recorderTap
	filled     packetBuffer

	// Only the goroutine uses the following fields.
	spare   packetBuffer
	young   []record // packets that are too young to be written, with their own copies of the bytes
	frame   []byte
	known   int // number of interfaces in the file
	summary recordingStats
	err     error
}

// packetBuffer is a buffer of packets.
type packetBuffer struct {
	records []record
	bytes   []byte
}

type record struct {
	link.Tapped     // the packet without Data
	from, to    int // range of the packet in the bytes of the batch
	tap         *recorderTap
}

// recorderTap is an interface of the file. It implements link.Tap.
type recorderTap struct {
	r                 *Recorder
	id                int
	name, description string
	start             time.Time
	seen              atomic.Uint64 // number of packets that the filter selected
	dropped           atomic.Uint64
}

// New starts a recording to w. A goroutine of the Recorder writes to w. The caller must call Close.
func New(w io.Writer, opts Options) *Recorder {
	if opts.Buffer == 0 {
		opts.Buffer = defaultBuffer
	}
	r := &Recorder{
		opts: opts, to: w,
		ending: make(chan struct{}), done: make(chan struct{}), finished: make(chan struct{}), full: make(chan struct{}, 1),
	}
	// New allocates the whole buffer at once. A growing buffer would be copied while a device waits.
	for _, b := range []*packetBuffer{&r.filled, &r.spare} {
		*b = packetBuffer{make([]record, 0, opts.Buffer/recordCost+1), make([]byte, 0, opts.Buffer)}
	}
	go r.run()
	return r
}

// NewInterfaceTap adds an interface to the file, and returns the tap for its packets.
func (r *Recorder) NewInterfaceTap(name, description string) link.Tap {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &recorderTap{r: r, id: len(r.interfaces), name: name, description: description, start: time.Now()}
	r.interfaces = append(r.interfaces, t)
	return t
}

// Done returns a channel that is closed when the recording has ended by itself: after Count packets, or after a write
// error.
func (r *Recorder) Done() <-chan struct{} { return r.done }

// Close ends the recording, and writes the remaining packets and the statistics. Close blocks until all data are
// written, and returns the first error of the writer.
func (r *Recorder) Close() (recordingStats, error) {
	r.over.Store(true)
	r.once.Do(func() { close(r.ending) })
	<-r.finished
	return r.summary, r.err
}

// Packet implements link.Tap.
func (t *recorderTap) Packet(p *link.Tapped) {
	r := t.r
	if r.over.Load() || !r.opts.Filter.Match(p) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opts.Count != 0 && r.accepted == r.opts.Count {
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
	r.accepted++
	if size > r.opts.Buffer/2 || r.accepted == r.opts.Count {
		select {
		case r.full <- struct{}{}:
		default:
		}
	}
}

// run writes packets until the recording ends.
func (r *Recorder) run() {
	defer close(r.finished)
	tick := time.NewTicker(flushPeriod)
	defer tick.Stop()
	for finished := false; !finished; {
		select {
		case <-tick.C:
		case <-r.full:
		case <-r.ending:
		}
		if r.writeDuePackets(false) {
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
	r.writeDuePackets(true)
	r.writeStatistics()
}

// writeDuePackets writes the packets that are old enough, or all of them. writeDuePackets reports whether the recording
// should end, which is the case if Count packets were accepted or a write has failed.
func (r *Recorder) writeDuePackets(all bool) (enough bool) {
	r.mu.Lock()
	b := r.filled
	r.filled, r.spare = packetBuffer{r.spare.records[:0], r.spare.bytes[:0]}, packetBuffer{}
	interfaces := r.interfaces
	enough = r.opts.Count != 0 && r.accepted == r.opts.Count
	r.mu.Unlock()

	for ; r.known < len(interfaces); r.known++ {
		r.runWriteStep(func() error { return r.addInterface(interfaces[r.known]) })
	}
	young := time.Now().Add(-reorderTime)
	for i := range b.records {
		b.records[i].Data = b.bytes[b.records[i].from:b.records[i].to]
	}
	list := append(r.young, b.records...)
	slices.SortStableFunc(list, func(x, y record) int { return x.Time.Compare(y.Time) })
	n := len(list)
	if !all && !enough {
		for n > 0 && list[n-1].Time.After(young) {
			n--
		}
	}
	for i := range list[:n] {
		r.runWriteStep(func() error { return r.writeRecord(&list[i]) })
	}
	rest := make([]record, 0, len(list)-n)
	for _, x := range list[n:] {
		x.Data = slices.Clone(x.Data) // the bytes of the batch are reused
		rest = append(rest, x)
	}
	r.young = rest
	r.spare = b
	if r.w != nil {
		r.runWriteStep(r.w.Flush)
	}
	return enough || r.err != nil
}

// runWriteStep runs a step of writing, unless an earlier step has failed.
func (r *Recorder) runWriteStep(step func() error) {
	if r.err == nil {
		if err := step(); err != nil {
			r.err = fmt.Errorf("write the capture: %w", err)
		}
	}
}

func (r *Recorder) addInterface(t *recorderTap) error {
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

var directionFlags = map[bool]*pcapgo.NgEpbFlags{
	false: {Direction: pcapgo.NgEpbFlagDirectionInbound},
	true:  {Direction: pcapgo.NgEpbFlagDirectionOutbound},
}

func (r *Recorder) writeRecord(x *record) error {
	r.frame = appendFrame(r.frame[:0], &x.Tapped)
	r.summary.Packets++
	return r.w.WritePacketWithOptions(gopacket.CaptureInfo{
		Timestamp: x.Time, CaptureLength: len(r.frame), Length: len(r.frame), InterfaceIndex: x.tap.id,
	}, r.frame, pcapgo.NgPacketOptions{Flags: directionFlags[x.Out]})
}

// writeStatistics writes the statistics.
func (r *Recorder) writeStatistics() {
	r.mu.Lock()
	interfaces := r.interfaces
	for _, x := range r.filled.records { // accepted by calls that were in progress at the end
		x.tap.dropped.Add(1)
	}
	r.mu.Unlock()
	now := time.Now()
	for _, t := range interfaces {
		dropped := t.dropped.Load()
		r.summary.Dropped += dropped
		r.runWriteStep(func() error {
			return r.w.WriteInterfaceStats(t.id, pcapgo.NgInterfaceStatistics{
				LastUpdate: now, StartTime: t.start, EndTime: now, PacketsReceived: t.seen.Load(), PacketsDropped: dropped,
			})
		})
	}
	if r.w != nil {
		r.runWriteStep(r.w.Flush)
	}
}
