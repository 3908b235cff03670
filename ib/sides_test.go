package ib_test

import (
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestConsumerCannotReachDriver compiles testdata/consumer, which uses operations that are for drivers only. Each
// marked line states the error that the compiler must report.
func TestConsumerCannotReachDriver(t *testing.T) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "testdata/consumer/consumer.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]string{}
	for _, g := range file.Comments {
		if says, ok := strings.CutPrefix(g.List[0].Text, "// error: "); ok {
			want[fset.Position(g.Pos()).Line] = says
		}
	}
	if len(want) < 30 {
		t.Errorf("lines with expected errors: got %d, want at least 30", len(want))
	}
	c := types.Config{Importer: importer.ForCompiler(fset, "gc", newExportLookup(t, file)), Error: func(err error) {
		var e types.Error
		if !errors.As(err, &e) {
			t.Errorf("%v", err)
			return
		}
		line := fset.Position(e.Pos).Line
		if says, ok := want[line]; !ok || !strings.Contains(e.Msg, says) {
			t.Errorf("line %d: got %q, want %q", line, e.Msg, says)
		}
		delete(want, line)
	}}
	_, _ = c.Check("consumer", fset, []*ast.File{file}, nil)
	for line, says := range want {
		t.Errorf("line %d: got no error, want %q", line, says)
	}
}

// newExportLookup returns a lookup function for the export data of a file's imports. The go command has compiled the
// imports. Compilation of the imports from source would take seconds.
func newExportLookup(t *testing.T, file *ast.File) importer.Lookup {
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
	for _, i := range file.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		files[path] = name
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
}
