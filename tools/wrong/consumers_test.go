package wrong

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"verbena/ib/check"
)

const (
	consumerVariable = "VERBENA_WRONG_CONSUMER"
	within           = 10 * time.Second // maximum time until a mistake is detected
)

// TestConsumerProcess runs one wrong consumer in a separate process. TestConsumerProcess prints the first line that
// reports the mistake.
func TestConsumerProcess(t *testing.T) {
	name := os.Getenv(consumerVariable)
	if name == "" {
		return // only TestConsumers sets the variable
	}
	found := make(chan string, 64)
	say := func(s string) {
		select {
		case found <- s:
		default:
		}
	}
	for _, c := range Consumers {
		if c.Name != name {
			continue
		}
		s, err := NewSite(func(v check.Violation) { say(fmt.Sprintf("violation %v: %s", v.Rule, v.What)) }, c.Weak)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if err := c.Run(s); err != nil {
				say("error: " + err.Error())
			}
			if err := s.Close(); err != nil {
				say("error: " + err.Error())
			}
		}()
	}
	select {
	case s := <-found:
		fmt.Println("FOUND", strings.ReplaceAll(s, "\n", "; "))
	case <-time.After(within):
	}
}

// TestConsumers counts the wrong consumers that checked mode or an error reports.
func TestConsumers(t *testing.T) {
	if !*runWrong {
		return
	}
	type result struct {
		found string
		out   []byte
		err   error
	}
	caught := 0
	for i, r := range runConcurrently(Consumers, func(c Consumer) (r result) {
		ctx, cancel := context.WithTimeout(context.Background(), within+grace)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestConsumerProcess$")
		cmd.Env = append(os.Environ(), consumerVariable+"="+c.Name)
		r.out, r.err = cmd.CombinedOutput()
		for l := range strings.Lines(string(r.out)) {
			if s, ok := strings.CutPrefix(l, "FOUND "); ok {
				r.found = strings.TrimSpace(s)
			}
		}
		return r
	}) {
		c := Consumers[i]
		t.Run(c.Name, func(t *testing.T) {
			switch {
			case r.found != "":
				t.Logf("reported by %s", r.found)
				caught++
			case r.err != nil:
				t.Errorf("process of the consumer: %v\n%s", r.err, r.out)
			default:
				t.Log("ESCAPES")
			}
			if (r.found == "") != c.Escapes {
				t.Errorf("mistake escapes: got %v, want %v", r.found == "", c.Escapes)
			}
		})
	}
	t.Logf("%d of %d wrong consumers are reported", caught, len(Consumers))
}
