// Package strict makes the devices of a test binary stricter, as the environment says. A test file imports the package
// for this effect. The command ib/ibtest/schedule adds such a file to the packages that it tests:
//
//	SCHEDULE_WEAK=PACKAGES   devices of these drivers, separated by commas, are weak devices (package ib/weak)
//	SCHEDULE_SEED=NUMBER     seed of the choices of weak devices; SCHEDULE_WEAK requires it
//	SCHEDULE_CHECK=DURATION  checked mode is on for each core (package ib/check), with this Timeout
//	SCHEDULE_FAULT=KIND      failures, changed time limits, late threads; only certain violations are reported
//	SCHEDULE_REUSE=MODE      checked mode reports the rule target-reused
//
// The binary prints a violation of the contract to standard error, and exits with status 1. In a bubble of package
// testing/synctest, time does not advance while one goroutine sleeps and another waits for a lock of the first one.
// The contract permits this for slow methods, so the devices have none.
package strict

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/ibtest/strict/expire"
	"verbena/ib/internal/observe"
	"verbena/ib/weak"
)

// The following constants are the names of the environment variables.
const (
	WeakEnv  = "SCHEDULE_WEAK"
	SeedEnv  = "SCHEDULE_SEED"
	CheckEnv = "SCHEDULE_CHECK"
)

func init() {
	if err := apply(os.Getenv, exitWith); err != nil {
		exitWith(err.Error())
	}
}

// exitWith ends the process with a message.
func exitWith(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(1)
}

// apply turns on the modes that the environment names. report is called for a violation of the contract.
func apply(getenv func(string) string, report func(string)) error {
	f := &faultFilter{kind: getenv(FaultEnv)}
	faults, err := faultChoice(f.kind)
	if err != nil {
		return err
	}
	if list := getenv(WeakEnv); list != "" {
		seed, err := strconv.ParseUint(getenv(SeedEnv), 10, 64)
		if err != nil {
			return fmt.Errorf("%s needs a number in %s: %w", WeakEnv, SeedEnv, err)
		}
		observe.NewDevice = func(h any) { weaken(h.(*ib.DeviceHandle), strings.Split(list, ","), seed, faults, f) }
	}
	if text := getenv(CheckEnv); text != "" {
		timeout, err := time.ParseDuration(text)
		if err != nil || timeout <= 0 {
			return fmt.Errorf("%s: got %q, want a duration such as 500ms", CheckEnv, text)
		}
		reuse := getenv(ReuseEnv)
		cfg := check.Config{Timeout: timeout, TargetReuse: reuse != "", Report: func(v check.Violation) {
			f.reportViolation(v, reuse, report)
		}}
		if f.kind != "" {
			expire.AtFailure = check.AllowAccess
			cfg.ClientTimeout, cfg.Ownership = faultClientTimeout, true
		}
		if faults != 0 { // otherwise the consumer refuses the device
			observe.AddFailed = f.recordFailedAdd
		}
		check.OnAll(cfg)
	}
	return nil
}

// weaken makes a device of one of the driver packages the least convenient one.
func weaken(h *ib.DeviceHandle, packages []string, seed uint64, faults weak.Set, f *faultFilter) {
	h.Wrap(func(d ib.Driver) ib.Driver {
		at := packageOf(d)
		if !slices.ContainsFunc(packages, func(p string) bool { return at == p || strings.HasPrefix(at, p+"/") }) {
			return d
		}
		return weak.New(d, weak.Config{Seed: seed, Choices: weak.All&^weak.Of(weak.SlowMethods) | faults,
			Fail: func() { failDevice(h) }, CallFailed: f.recordCall})
	})
}

// packageOf returns the import path of the package of a driver's type. For a driver on package engine this is the
// package of its personality.
func packageOf(d ib.Driver) string {
	t := reflect.TypeOf(d)
	if p, ok := ib.As[interface{ Personality() any }](d); ok {
		t = reflect.TypeOf(p.Personality())
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath()
}
