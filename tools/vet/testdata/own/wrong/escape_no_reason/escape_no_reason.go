package escape_no_reason

// Ring has an escape that does not say why.
//
//verbena:nosleep
func Ring(c chan int) int {
	//verbena:allow nosleep // want "directive: an escape needs a reason"
	return <-c
}
