package ib

// As returns the first value of type T among d and the values that d wraps. T is, for example, an optional interface or
// a driver's own type. D is an interface of the driver's side: [Driver], [DriverQP] or another one. A wrapper, for
// example for tracing or fault injection, has the same interface as its wrapped value and has the method Unwrap() D. As
// may not sleep.
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
