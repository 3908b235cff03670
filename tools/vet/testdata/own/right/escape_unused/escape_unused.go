package escape_unused

// Ring calls what is allowed to sleep, for a reason.
//
//verbena:nosleep
func Ring(c chan int) int { return take(c) }

// take takes what is there.
//
//verbena:allow nosleep the channel is closed before anybody calls Ring
func take(c chan int) int { return <-c }
