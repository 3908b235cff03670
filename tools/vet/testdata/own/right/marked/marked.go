package marked

// Ring is marked as what must not sleep.
//
//verbena:nosleep
func Ring(c chan int) int {
	select {
	case n := <-c:
		return n
	default:
		return 0
	}
}
