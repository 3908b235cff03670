package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"

	"github.com/alecthomas/kong"

	"verbena/ib/weak"
	"verbena/internal/ctl"
)

// weakFlag is the value of --weak or --weak=SEED.
type weakFlag struct {
	on   bool
	seed uint64
}

// maxRandomSeed limits the seeds of --weak, which a user types again.
const maxRandomSeed = 1_000_000

// IsBool implements kong.BoolMapperValue: the value is optional.
func (*weakFlag) IsBool() bool { return true }

// Decode implements kong.MapperValue.
func (w *weakFlag) Decode(ctx *kong.DecodeContext) (err error) {
	w.on = true
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		w.seed = rand.Uint64N(maxRandomSeed)
		return nil
	}
	text := fmt.Sprint(ctx.Scan.Pop().Value)
	if w.seed, err = strconv.ParseUint(text, 0, 64); err != nil {
		return fmt.Errorf("--weak=%s: the seed must be a number", text)
	}
	return nil
}

// checkWeak checks the flags of a weak device and prints the seed.
func (r *runCmd) checkWeak() error {
	if r.Weak.on && r.Replay != "" {
		return errors.New("run: --weak and --replay are alternatives: --replay takes the decisions of its file alone")
	}
	if !r.Weak.on {
		if len(r.WeakChoices) > 0 || r.WeakLog != "" && r.Replay == "" {
			return errors.New("run: --weak-choices and --weak-log need --weak")
		}
		return nil
	}
	if _, err := weak.ParseForPrograms(r.WeakChoices); err != nil {
		return fmt.Errorf("run: --weak-choices: %w", err)
	}
	fmt.Fprintf(os.Stderr, "verbena: weak device with seed %d; to repeat a failure, use --weak=%[1]d\n", r.Weak.seed)
	return nil
}

// weakRequest returns the request for a weak device, or nil.
func (r *runCmd) weakRequest() *ctl.Weak {
	if !r.Weak.on && r.Replay == "" {
		return nil
	}
	return &ctl.Weak{Seed: r.Weak.seed, Choices: r.WeakChoices, Record: r.decisions != nil, Replay: r.Replay != ""}
}
