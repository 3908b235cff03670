package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"verbena/capture"
	"verbena/internal/ctl"
	"verbena/service"
)

type captureCmd struct {
	Write    string        `short:"w" required:"" help:"File to write; - is the standard output." placeholder:"FILE" complete:"file"`
	Dev      string        `help:"Record only this device; default: all, including devices added meanwhile." placeholder:"NAME" complete:"device"`
	Filter   string        `help:"Only packets that match, such as qp=17 or opcode=read,dir=in; see above." placeholder:"F" complete:"none"`
	Count    uint64        `help:"End after N packets." placeholder:"N" complete:"none"`
	Duration time.Duration `help:"End after a time, such as 10s." placeholder:"D" complete:"none"`
}

func (c *captureCmd) Help() string {
	return `Writes a pcapng file, for Wireshark, tshark or tcpdump, until Ctrl-C, --count or --duration. It needs no privilege. Packets
that take the shortcut within the service are in it as they would be on the wire; a packet between two devices of the service
is in it twice, as it leaves and as it arrives. Packets that fault rules have dropped are not in it.

` + capture.FilterHelp + `

Examples:
  verbena capture -w all.pcapng
  verbena capture -w - --dev rxe0 --filter opcode=ack | tshark -r -
  verbena capture verify all.pcapng`
}

func (c *captureCmd) Run(cl *cli) error {
	if _, err := capture.ParseFilter(c.Filter); err != nil {
		return err
	}
	client, err := cl.startService()
	if err != nil {
		return err
	}
	defer client.Close()
	rec, err := startRecording(client, c.Write, ctl.Capture{Dev: c.Dev, Filter: c.Filter, Count: c.Count})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if c.Duration > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, c.Duration)
		defer cancel()
	}
	select {
	case <-ctx.Done():
		stop() // a second signal then kills this process
	case <-rec.done:
	}
	return rec.finish()
}

// recordingFile copies a capture to a file.
type recordingFile struct {
	name   string
	stream *ctl.CaptureStream
	done   chan struct{}
	err    error // valid once done is closed
}

// startRecording starts the capture and opens the file. startRecording leaves the file unchanged if the service
// refuses the capture.
func startRecording(client *service.Client, name string, c ctl.Capture) (*recordingFile, error) {
	stream, err := client.Capture(c)
	if err != nil {
		return nil, err
	}
	to := os.Stdout
	if name != "-" {
		if to, err = os.Create(name); err != nil {
			stream.Close()
			return nil, fmt.Errorf("capture: %w", err)
		}
	}
	r := &recordingFile{name: name, stream: stream, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		_, err := io.Copy(to, stream)
		stream.Close()
		r.err = errors.Join(err, to.Close())
	}()
	return r, nil
}

// finish ends the capture and prints its result.
func (r *recordingFile) finish() error {
	r.stream.RequestEnd()
	<-r.done
	if errors.Is(r.err, syscall.EPIPE) {
		return nil // the process that reads the standard output has closed the pipe
	}
	if r.err != nil {
		return fmt.Errorf("capture: %s: %w", r.name, r.err)
	}
	end := r.stream.Result()
	if end.Error != "" {
		return errors.New(end.Error)
	}
	fmt.Fprintf(os.Stderr, "verbena: capture: %d packets", end.Packets)
	if end.Dropped > 0 {
		fmt.Fprintf(os.Stderr, ", %d more dropped: they arrived faster than they could be written", end.Dropped)
	}
	if end.Packets+end.Dropped == 0 {
		fmt.Fprint(os.Stderr, ": no device of the service has sent or received a packet that matches --dev and --filter")
	}
	fmt.Fprintln(os.Stderr)
	return nil
}
