package main

import "testing"

// TestIsListeningUnixMatchesWholePath tests that the path of a socket may contain spaces, and must match completely.
func TestIsListeningUnixMatchesWholePath(t *testing.T) {
	const table = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 41 /run/a b/sock et
0000000000000000: 00000002 00000000 00010000 0001 01    42 /run/plain
0000000000000000: 00000003 00000000 00000000 0001 03 43 /run/connected
0000000000000000: 00000002 00000000 00010000 0001 01 44
`
	for path, want := range map[string]bool{
		"/run/a b/sock et": true, "/run/plain": true,
		"/run/connected": false, "et": false, "b/sock et": false, "/run": false, "44": false,
	} {
		if got := isListeningUnix(table, path); got != want {
			t.Errorf("isListeningUnix %q: got %v, want %v", path, got, want)
		}
	}
}
