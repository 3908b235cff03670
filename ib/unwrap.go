package ib

// As returns the first in the chain of d and what it wraps that is a T, such as an optional ability or a driver's own
// type. D is an interface of the driver's side: [Driver], [DriverQP] and so on. A value that wraps another one of the
// same interface, for tracing or for faults, has the method Unwrap() D; what it does not implement itself is then
// asked of the wrapped one. It may not sleep.
func As[T, D any](d D) (T, bool) {
	for {
		if t, ok := any(d).(T); ok {
			return t, true
		}
		w, ok := any(d).(interface{ Unwrap() D })
		if !ok {
			var none T
			return none, false
		}
		d = w.Unwrap()
	}
}
