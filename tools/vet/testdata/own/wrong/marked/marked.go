package marked

// Ring is marked as what must not sleep.
//
//verbena:nosleep
func Ring(c chan int) int {
	return <-c // want "nosleep: .*Ring, which is marked .*nosleep, may sleep: it receives from a channel"
}
