package main

// The program prints what has arrived in the other queue pair's memory.
func Example() {
	main()
	// Output: success: hello, world
}
