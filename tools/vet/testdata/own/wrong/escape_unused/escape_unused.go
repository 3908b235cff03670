package escape_unused

// Ring has an escape where there is nothing to say.
//
//verbena:nosleep
func Ring(n int) int {
	//verbena:allow nosleep there was a channel here once // want "directive: unused escape"
	return n
}
