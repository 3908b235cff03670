package main

import "slices"

// reduce returns a small subset of items for which fails returns true, by delta debugging (Zeller and Hildebrandt,
// "Simplifying and isolating failure-inducing input", 2002). fails must be true for items. If fails returns an error,
// reduce returns it with the smallest subset so far. If no test was in error, fails is false for the subset without any
// one of its items, provided that fails is deterministic.
func reduce[T any](items []T, fails func([]T) (bool, error)) ([]T, error) {
	for parts := 2; len(items) > 1; {
		size := (len(items) + parts - 1) / parts
		smaller, err := reduceOnce(items, size, fails)
		switch {
		case err != nil:
			return items, err
		case len(smaller) < len(items):
			if parts = max(parts-1, 2); len(smaller) <= size {
				parts = 2
			}
			items = smaller
		case size == 1:
			return items, nil
		default:
			parts = min(2*parts, len(items))
		}
	}
	return items, nil
}

// reduceOnce tests the parts of a size, and the items without one of them. It returns the first list that fails, or all
// items.
func reduceOnce[T any](items []T, size int, fails func([]T) (bool, error)) ([]T, error) {
	parts := slices.Collect(slices.Chunk(items, size))
	tests := slices.Clone(parts)
	if len(parts) > 2 {
		for i := range parts {
			tests = append(tests, slices.Concat(slices.Concat(parts[:i]...), slices.Concat(parts[i+1:]...)))
		}
	}
	for _, t := range tests {
		if ok, err := fails(t); ok || err != nil {
			return t, err
		}
	}
	return items, nil
}
