package main

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/alecthomas/kong"
)

// commandAtPath returns the command at a path.
func commandAtPath(n *kong.Node, path ...string) *kong.Node {
	for _, name := range path {
		i := slices.IndexFunc(n.Children, func(c *kong.Node) bool { return c.Name == name })
		if i < 0 {
			return nil
		}
		n = n.Children[i]
	}
	return n
}

// orderFlags moves the flags named in order before the other flags of a command.
func orderFlags(n *kong.Node, order []string) {
	if n == nil {
		return
	}
	rank := func(f *kong.Flag) int {
		if i := slices.Index(order, f.Name); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(n.Flags, func(a, b *kong.Flag) int { return cmp.Compare(rank(a), rank(b)) })
}

// flagParserOption returns a kong option that sets the parser for flag values of a type.
func flagParserOption[T any](parse func(string) (T, error)) kong.Option {
	return kong.TypeMapper(reflect.TypeFor[T](),
		kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
			var text string
			if err := ctx.Scan.PopValueInto("value", &text); err != nil {
				return err
			}
			v, err := parse(text)
			if err == nil {
				target.Set(reflect.ValueOf(v))
			}
			return err
		}))
}
