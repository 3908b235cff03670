package scenario

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestScenarioFieldsAreDocumented checks that docs/failover.md has all fields of a scenario file.
func TestScenarioFieldsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/failover.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[reflect.Type]bool{}
	fields := 0
	var walk func(reflect.Type)
	walk = func(x reflect.Type) {
		for x.Kind() == reflect.Pointer || x.Kind() == reflect.Slice {
			x = x.Elem()
		}
		if x.Kind() != reflect.Struct || seen[x] {
			return
		}
		seen[x] = true
		for i := range x.NumField() {
			f := x.Field(i)
			name, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if option == "inline" {
				walk(f.Type)
			}
			if name == "" || name == "-" {
				continue
			}
			fields++
			if !regexp.MustCompile("`[^`\n]*\\b" + name + "\\b[^`\n]*`").Match(b) {
				t.Errorf("docs/failover.md: got no field %s of %v, want it", name, x)
			}
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[File]())
	if fields < 80 {
		t.Errorf("fields: got %d, want at least 80", fields)
	}
}
