package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// startUps is how often each program is started.
const startUps = 50

// startUp takes what `verbena run` adds to the start of a program where the service is up: reaching programs itself,
// and by their launchers, as it has to where Yama restricts ptrace.
func startUp(dir, socket string) error {
	asking := filepath.Join(dir, "asking")
	s := exec.Command(*verbena, "serve", "--socket", asking, "--link", "rxe0=127.0.0.43", "--ask-launchers")
	var log bytes.Buffer
	s.Stderr = &log
	if err := s.Start(); err != nil {
		return err
	}
	defer func() {
		s.Process.Signal(syscall.SIGTERM)
		s.Wait()
	}()
	if !until(5*time.Second, func() bool { return exec.Command(*verbena, "link", "show", "--socket", asking).Run() == nil }) {
		return fmt.Errorf("the service does not start: %s", log.String())
	}
	fmt.Printf("From start to end of a program, in milliseconds; median and 9th decile of %d times, taken in turn:\n\n", startUps)
	fmt.Println("| program | by itself | `verbena run` | `verbena run`, ptrace_scope 1 |")
	fmt.Println("|---|---:|---:|---:|")
	for _, p := range [][]string{{"true"}, {"ls", "/usr/lib"}, {"ibv_devices"}} {
		ways := [][]string{p, append([]string{*verbena, "run", "--socket", socket, "--"}, p...),
			append([]string{*verbena, "run", "--socket", asking, "--"}, p...)}
		times := make([][]float64, len(ways))
		for range startUps {
			for i, argv := range ways {
				began := time.Now()
				if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil && (i > 0 || p[0] != "ibv_devices") {
					return fmt.Errorf("%q: %w\n%s", argv, err, out)
				}
				times[i] = append(times[i], float64(time.Since(began).Microseconds())/1000)
			}
		}
		fmt.Printf("| `%s` |", strings.Join(p, " "))
		for _, t := range times {
			slices.Sort(t)
			fmt.Printf(" %.1f, %.1f |", t[len(t)/2], t[len(t)*9/10])
		}
		fmt.Println()
	}
	fmt.Println()
	return nil
}
