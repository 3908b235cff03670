// Command notice prints packaging/NOTICE: the licences of the third-party code in the binaries.
//
//	go run ./test/notice > packaging/NOTICE
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	text, err := generateNotice()
	if err != nil {
		fmt.Fprintln(os.Stderr, "notice:", err)
		os.Exit(1)
	}
	fmt.Print(text)
}

const noticeHeader = `Verbena's binaries contain the Go standard library and the modules below, under these licences.
This file is made by: go run ./test/notice > packaging/NOTICE
`

// generateNotice returns the content of the file. It contains no versions, because go.mod has them.
func generateNotice() (string, error) {
	out, err := exec.Command("go", "list", "-deps", "-f",
		"{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}",
		"verbena/cmd/...").Output()
	if err != nil {
		return "", fmt.Errorf("list the dependencies: %w", err)
	}
	modules := slices.Compact(slices.Sorted(slices.Values(strings.Fields(strings.ReplaceAll(string(out), "\t", "|")))))
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find the standard library: %w", err)
	}
	b := strings.Builder{}
	b.WriteString(noticeHeader)
	for _, m := range append([]string{"The Go standard library|" + strings.TrimSpace(string(root))}, modules...) {
		name, dir, _ := strings.Cut(m, "|")
		text, err := readLicence(dir)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("-", 80), name, strings.TrimSpace(text))
	}
	return b.String(), nil
}

// readLicence returns the text of a module's licence file.
func readLicence(dir string) (string, error) {
	for _, name := range []string{"LICENSE", "LICENSE.txt", "LICENSE.md", "License", "COPYING"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if os.IsNotExist(err) {
			continue
		}
		return string(b), err
	}
	return "", fmt.Errorf("no licence file in %s", dir)
}
