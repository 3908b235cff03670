package marked_field

// Options has a function that must not sleep.
type Options struct {
	//verbena:nosleep
	Done func(int)
}

// Use gives one that does.
func Use(c chan int) Options {
	return Options{Done: func(n int) { c <- n }} // want "nosleep: .*which is called as Done, may sleep: it sends to a channel"
}
