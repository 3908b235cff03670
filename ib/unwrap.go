package ib

// As returns the first value of type T among d and the values that it wraps. T is, for example, an optional interface
// or a driver's own type. D is an interface of the driver's side: [Driver], [DriverQP] and so on. A value that wraps
// another one of the same interface, for tracing or for faults, has the method Unwrap() D. It may not sleep.
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
