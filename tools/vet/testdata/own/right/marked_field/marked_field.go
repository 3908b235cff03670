package marked_field

// Options has a function that must not sleep, and one that may.
type Options struct {
	//verbena:nosleep
	Done  func(int)
	Close func(int)
}

// Use gives both.
func Use(c chan int) Options {
	return Options{Done: func(n int) {}, Close: func(n int) { c <- n }}
}
