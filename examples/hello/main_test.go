package main

func Example() {
	main()
	// Output: success: hello, world
}
