package escape_no_reason

// Ring has an escape.
//
//verbena:nosleep
func Ring(c chan int) int {
	c <- 1 //verbena:allow nosleep the channel has room for one and nobody else sends
	return 0
}
