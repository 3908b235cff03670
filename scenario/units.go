package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"verbena/internal/fault"
)

// unitDecoders returns the decoding options for the types of package fault, which does not depend on a YAML package.
func unitDecoders() []yaml.DecodeOption {
	return []yaml.DecodeOption{unitDecoder(fault.ParseShare), unitDecoder(parseDuration), unitDecoder(fault.ParseRate),
		unitDecoder(fault.ParseSize)}
}

// unitDecoder returns an option that decodes values of a type from text.
func unitDecoder[T any](parse func(string) (T, error)) yaml.DecodeOption {
	return yaml.CustomUnmarshaler(func(v *T, b []byte) error {
		var text string
		err := yaml.Unmarshal(b, &text)
		if err == nil {
			*v, err = parse(text)
		}
		return err
	})
}

// duration is a duration in Go's notation: 1.5s, 300ms, 20us.
type duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(b []byte) error {
	v, err := parseDuration(string(b))
	*d = duration(v)
	return err
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration: write 5s, 300ms or 20us", text)
	}
	return d, nil
}

// MarshalText implements encoding.TextMarshaler.
func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }
