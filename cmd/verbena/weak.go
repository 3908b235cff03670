package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"verbena/ib/weak"
	"verbena/internal/ctl"
)

// weakFlag is the value of --weak or --weak=SEED.
type weakFlag struct {
	on     bool
	seed   uint64
	search int // number of seeds of a search, or 0
}

// maxSearchSeeds limits the number of seeds of a search.
const maxSearchSeeds = 1_000_000

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
	if count, ok := strings.CutPrefix(text, "search:"); ok {
		if w.search, err = strconv.Atoi(count); err != nil || w.search < 1 || w.search > maxSearchSeeds {
			return fmt.Errorf("--weak=%s: the number of seeds must be from 1 to %d", text, maxSearchSeeds)
		}
		return nil
	}
	if w.seed, err = strconv.ParseUint(text, 0, 64); err != nil {
		return fmt.Errorf("--weak=%s: want a number as the seed, or search:N", text)
	}
	return nil
}

// The next constants begin messages about a run, which a search does not repeat.
const (
	weakNotice   = "verbena: weak device with"
	replayNotice = "verbena: replay:"
)

// checkWeak checks the flags of a weak device and prints the seed.
func (r *runCmd) checkWeak() error {
	if r.Weak.on && r.Replay != "" {
		return errors.New("run: --weak and --replay cannot be combined, because --replay takes only the decisions in its file")
	}
	if !r.Weak.on {
		if len(r.WeakChoices) > 0 {
			return errors.New("run: --weak-choices needs --weak")
		}
		return nil
	}
	if _, err := weak.ParseForPrograms(r.WeakChoices); err != nil {
		return fmt.Errorf("run: --weak-choices: %w", err)
	}
	fmt.Fprintf(os.Stderr, weakNotice+" seed %d; to repeat a failure, use --weak=%[1]d\n", r.Weak.seed)
	return nil
}

// weakRequest returns the request for a weak device, or nil.
func (r *runCmd) weakRequest() *ctl.Weak {
	if !r.Weak.on && r.Replay == "" {
		return nil
	}
	return &ctl.Weak{Seed: r.Weak.seed, Choices: r.WeakChoices, Record: r.decisions != nil, Replay: r.Replay != ""}
}
