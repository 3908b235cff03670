package quota

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
)

// Limit is the limit of one kind of resource.
type Limit struct {
	PerUser uint64 // limit for one user; 0 means no limit
	Total   uint64 // limit for all users together; 0 means no limit
}

// UserMaximum returns the amount that one user can hold if no other user holds any; 0 means no limit.
func (l Limit) UserMaximum() uint64 {
	switch open := l.Total - l.Total/reserveShare; {
	case l.Total == 0:
		return l.PerUser
	case l.PerUser == 0:
		return open
	default:
		return min(l.PerUser, open)
	}
}

// Limits holds the limits of all kinds. The zero value has no limits.
type Limits [NumKinds]Limit

// Parse sets the limit of one kind from KIND=PER-USER[/TOTAL]. Numbers may end in K, M, G or T, and 0 means no limit.
func (l *Limits) Parse(text string) error {
	fail := func(err error) error { return fmt.Errorf("limit %q: %w", text, err) }
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return fail(fmt.Errorf("write KIND=PER-USER or KIND=PER-USER/TOTAL: %w", syscall.EINVAL))
	}
	kind, err := parseKind(name)
	if err != nil {
		return fail(err)
	}
	limit := l[kind]
	perUser, total, both := strings.Cut(value, "/")
	if limit.PerUser, err = parseAmount(perUser); err != nil {
		return fail(err)
	}
	if both {
		if limit.Total, err = parseAmount(total); err != nil {
			return fail(err)
		}
	}
	if limit.Total != 0 && (limit.PerUser > limit.Total || limit.PerUser == 0) {
		return fail(fmt.Errorf("one user may not have more than all users together, %d: write %s=%s/TOTAL: %w",
			limit.Total, name, perUser, syscall.EINVAL))
	}
	l[kind] = limit
	return nil
}

// KindNames returns the names of all kinds.
func KindNames() (names []string) {
	for k := range NumKinds {
		names = append(names, k.String())
	}
	return names
}

// parseKind returns the kind of a name. parseKind's error lists the names and wraps EINVAL.
func parseKind(name string) (ResourceKind, error) {
	for k := range NumKinds {
		if k.String() == name {
			return k, nil
		}
	}
	return 0, fmt.Errorf("unknown limit %q; the limits are %s: %w", name, strings.Join(KindNames(), ", "), syscall.EINVAL)
}

func parseAmount(text string) (uint64, error) {
	digits, shift := text, 0
	if n := len(text); n > 0 {
		if i := strings.IndexByte("KMGT", text[n-1]); i >= 0 {
			digits, shift = text[:n-1], 10*(i+1)
		}
	}
	v, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || v<<shift>>shift != v {
		return 0, fmt.Errorf("%q is not a number, such as 1000, 64K or 2G: %w", text, syscall.EINVAL)
	}
	return v << shift, nil
}
