// Package nbd serves disks to local programs by the network block device protocol, usually on a Unix socket.
// Clients are nbdcopy, nbdinfo, qemu-img, qemu, nbdkit's filters and the kernel's nbd driver. The package
// implements the fixed newstyle negotiation with simple replies, as described in
// https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md, with the options EXPORT_NAME, INFO, GO, LIST
// and ABORT.
package nbd

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
)

// Disk is a served disk. Several goroutines call its methods concurrently.
type Disk interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Size() int64
}

// Server serves disks by name.
type Server struct {
	// Exports maps names to disks. A client that requests the name "" gets the only disk, if Exports has exactly
	// one.
	Exports map[string]Disk
	// Logf is called with the reason for the end of a connection, unless the client has requested the end. May be
	// nil.
	Logf func(format string, args ...any)
}

const (
	magicInit   = 0x4e42444d41474943 // NBDMAGIC
	magicOption = 0x49484156454f5054 // IHAVEOPT
	magicReply  = 0x0003e889045565a9
	magicReq    = 0x25609513
	magicAnswer = 0x67446698

	flagFixed    = 1 << 0
	flagNoZeroes = 1 << 1

	optExportName = 1
	optAbort      = 2
	optList       = 3
	optInfo       = 6
	optGo         = 7

	repAck        = 1
	repServer     = 2
	repInfo       = 3
	repErrUnsup   = 1<<31 + 1
	repErrInvalid = 1<<31 + 3
	repErrUnknown = 1<<31 + 6

	infoExport    = 0
	infoBlockSize = 3

	sendFlags  = 1<<0 | 1<<2 | 1<<3 | 1<<8 // has flags, flush, FUA, several connections
	cmdRead    = 0
	cmdWrite   = 1
	cmdDisc    = 2
	cmdFlush   = 3
	cmdFlagFUA = 1 << 0

	maxOption  = 4096
	maxPayload = 32 << 20 // the block size limit that clients may assume
	maxPooled  = 256 << 10

	// Limits of the memory and requests that a client can occupy in the server. A client may leave replies unread
	// for ever.
	maxConns = 32
	inFlight = 64         // requests per connection
	inMemory = maxPayload // bytes of the requests' data
)

// handshakeTimeout limits the time for the client's negotiation.
const handshakeTimeout = 10 * time.Second

// Serve accepts connections until ctx ends, which also ends the connections. It owns l. Serve closes connections
// beyond the 32nd at once. Each connection uses up to 48 MiB.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var conns sync.WaitGroup
	defer conns.Wait()
	free := make(chan struct{}, maxConns)
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case free <- struct{}{}:
		default:
			c.Close()
			if s.Logf != nil {
				s.Logf("nbd: client refused: %d connections are open", maxConns)
			}
			continue
		}
		conns.Go(func() {
			defer func() { <-free }()
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			if err := s.serveConn(c); err != nil && ctx.Err() == nil && s.Logf != nil {
				s.Logf("nbd: %v", err)
			}
		})
	}
}

// conn is the connection of a client.
type conn struct {
	r *bufio.Reader

	mu sync.Mutex // serialises writes of replies
	w  net.Conn

	gone atomic.Bool // set when the client does not read replies any more
}

func newConnReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 64<<10) }

func (c *conn) writeBuffers(b ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	bufs := net.Buffers(slices.DeleteFunc(b, func(p []byte) bool { return len(p) == 0 }))
	_, err := bufs.WriteTo(c.w)
	return err
}

func bigEndian16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func bigEndian32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
func bigEndian64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

func (s *Server) serveConn(nc net.Conn) error {
	c := &conn{r: newConnReader(nc), w: nc}
	nc.SetDeadline(time.Now().Add(handshakeTimeout))
	disk, err := s.negotiate(c)
	if err != nil || disk == nil {
		return err
	}
	nc.SetDeadline(time.Time{})
	return c.executeRequests(disk)
}

// findDisk returns the disk with the given name.
func (s *Server) findDisk(name string) Disk {
	if name == "" && len(s.Exports) == 1 {
		for _, d := range s.Exports {
			return d
		}
	}
	return s.Exports[name]
}

// negotiate returns the disk that the client has chosen, or nil if the client has disconnected.
func (s *Server) negotiate(c *conn) (Disk, error) {
	if err := c.writeBuffers(bigEndian64(magicInit), bigEndian64(magicOption),
		bigEndian16(flagFixed|flagNoZeroes)); err != nil {
		return nil, err
	}
	var flags [4]byte
	if _, err := io.ReadFull(c.r, flags[:]); err != nil {
		return nil, nilIfDisconnected(err)
	}
	clientFlags := binary.BigEndian.Uint32(flags[:])
	if clientFlags&^(flagFixed|flagNoZeroes) != 0 {
		return nil, fmt.Errorf("unknown client flags %#x", clientFlags)
	}
	for range 1000 { // the three flags that a client needs
		var h [16]byte
		if _, err := io.ReadFull(c.r, h[:]); err != nil {
			return nil, nilIfDisconnected(err)
		}
		option, n := binary.BigEndian.Uint32(h[8:]), binary.BigEndian.Uint32(h[12:])
		if binary.BigEndian.Uint64(h[:]) != magicOption {
			return nil, errors.New("an option does not begin with its magic number")
		}
		if n > maxOption {
			return nil, fmt.Errorf("option %d of %d bytes", option, n)
		}
		data := make([]byte, n)
		if _, err := io.ReadFull(c.r, data); err != nil {
			return nil, err
		}
		reply := func(kind uint32, b []byte) error {
			return c.writeBuffers(bigEndian64(magicReply), bigEndian32(option), bigEndian32(kind), bigEndian32(uint32(len(b))),
				b)
		}
		var err error
		switch option {
		case optExportName:
			d := s.findDisk(string(data))
			if d == nil {
				return nil, fmt.Errorf("the server has no export %.64q", data) // the option EXPORT_NAME has no error reply
			}
			b := append(bigEndian64(uint64(d.Size())), bigEndian16(sendFlags)...)
			if clientFlags&flagNoZeroes == 0 {
				b = append(b, make([]byte, 124)...)
			}
			return d, c.writeBuffers(b)
		case optAbort:
			return nil, reply(repAck, nil)
		case optList:
			if n != 0 {
				err = reply(repErrInvalid, nil)
				break
			}
			for name := range s.Exports {
				if err = reply(repServer, append(bigEndian32(uint32(len(name))), name...)); err != nil {
					return nil, err
				}
			}
			err = reply(repAck, nil)
		case optInfo, optGo:
			name, ok := parseExportName(data)
			if !ok {
				err = reply(repErrInvalid, nil)
				break
			}
			d := s.findDisk(name)
			if d == nil {
				err = reply(repErrUnknown, []byte("there is no such export"))
				break
			}
			info := append(append(bigEndian16(infoExport), bigEndian64(uint64(d.Size()))...), bigEndian16(sendFlags)...)
			blocks := append(append(append(bigEndian16(infoBlockSize), bigEndian32(1)...), bigEndian32(4096)...),
				bigEndian32(maxPayload)...)
			if err = errors.Join(reply(repInfo, info), reply(repInfo, blocks), reply(repAck, nil)); err == nil &&
				option == optGo {
				return d, nil
			}
		default:
			err = reply(repErrUnsup, nil)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, errors.New("the client sends too many options")
}

// parseExportName returns the name in the data of INFO and GO: its length (4), the name, the number of requests (2),
// and the requests (2 each).
func parseExportName(b []byte) (string, bool) {
	if len(b) < 6 {
		return "", false
	}
	n := uint64(binary.BigEndian.Uint32(b))
	if n > uint64(len(b)-6) {
		return "", false
	}
	rest := b[4+n:]
	return string(b[4 : 4+n]), len(rest) == 2+2*int(binary.BigEndian.Uint16(rest))
}

// nilIfDisconnected removes the error of a client that disconnects between messages.
func nilIfDisconnected(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}

// protocolErrno maps an error to an error number of the protocol.
func protocolErrno(err error) uint32 {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, syscall.EINVAL):
		return uint32(syscall.EINVAL)
	case errors.Is(err, syscall.ENOSPC):
		return uint32(syscall.ENOSPC)
	case errors.Is(err, syscall.EROFS):
		return uint32(syscall.EPERM)
	}
	return uint32(syscall.EIO)
}

// executeRequests executes requests, several at a time, until the client disconnects. executeRequests finishes the
// requests that have begun.
func (c *conn) executeRequests(d Disk) error {
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, inFlight)
	memory := semaphore.NewWeighted(inMemory)
	pool := sync.Pool{New: func() any { return new([]byte) }}
	for !c.gone.Load() { // the buffer may already contain many requests
		var h [28]byte
		if _, err := io.ReadFull(c.r, h[:]); err != nil {
			return nilIfDisconnected(err)
		}
		flags, kind := binary.BigEndian.Uint16(h[4:]), binary.BigEndian.Uint16(h[6:])
		handle := [8]byte(h[8:16])
		off, n := binary.BigEndian.Uint64(h[16:]), binary.BigEndian.Uint32(h[24:])
		if binary.BigEndian.Uint32(h[:]) != magicReq {
			return errors.New("a request does not begin with its magic number")
		}
		if kind == cmdDisc {
			return nil
		}
		if (kind == cmdRead || kind == cmdWrite) && n > maxPayload {
			return fmt.Errorf("request for %d bytes", n)
		}
		held := int64(0)
		if kind == cmdRead || kind == cmdWrite {
			held = int64(n)
		}
		slots <- struct{}{}
		memory.Acquire(context.Background(), held) // released when replies were written, or could not be written
		buf := pool.Get().(*[]byte)
		if int64(cap(*buf)) < held {
			*buf = make([]byte, held)
		}
		*buf = (*buf)[:held]
		if kind == cmdWrite {
			if _, err := io.ReadFull(c.r, *buf); err != nil {
				return err
			}
		}
		running.Go(func() {
			defer func() {
				if cap(*buf) <= maxPooled {
					pool.Put(buf)
				}
				memory.Release(held)
				<-slots
			}()
			var data []byte
			err := executeRequest(d, kind, flags, off, n, *buf)
			if err == nil && kind == cmdRead {
				data = *buf
			}
			if c.writeBuffers(bigEndian32(magicAnswer), bigEndian32(protocolErrno(err)), handle[:], data) != nil {
				c.gone.Store(true)
				c.w.Close() // also ends the reading
			}
		})
	}
	return nil
}

// executeRequest executes one request and returns its reply.
func executeRequest(d Disk, kind, flags uint16, off uint64, n uint32, buf []byte) error {
	if flags&^cmdFlagFUA != 0 {
		return syscall.EINVAL
	}
	if size := uint64(d.Size()); (kind == cmdRead || kind == cmdWrite) && (off > size || uint64(n) > size-off) {
		if kind == cmdWrite {
			return syscall.ENOSPC
		}
		return syscall.EINVAL
	}
	switch kind {
	case cmdRead:
		if got, err := d.ReadAt(buf, int64(off)); got < len(buf) {
			return err
		}
		return nil // ReadAt may return io.EOF with complete data at the end
	case cmdWrite:
		_, err := d.WriteAt(buf, int64(off))
		if err == nil && flags&cmdFlagFUA != 0 {
			err = d.Sync()
		}
		return err
	case cmdFlush:
		return d.Sync()
	}
	return syscall.EINVAL
}
