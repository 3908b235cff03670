package main

// The program prints the data that arrived in the other queue pair's memory.
func Example() {
	main()
	// Output: success: hello, world
}
