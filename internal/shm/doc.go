// Package shm is memory that a service shares with an unmodified program by way of an ordinary file on a memory
// file system such as /dev/shm: the program's descriptor of the file is what it maps, by a plain mmap(2) that
// nobody has to answer, and the offset tells which region it gets.
//
// A [File] is sparse. [File.Alloc] reserves a region, so that a full file system is an error there and not a
// SIGBUS later; freeing it gives the pages back at once, also those that the program still has mapped, which then read
// as zeros. Offsets are never used twice: a stale mapping can see nothing new. Here the file is mapped in few large
// pieces, and pages and pieces are charged to the user.
//
// The service keeps one description of the file, for mapping, and uses its path for nothing but to remove it: the file
// is the user's, and so may be whatever has its name. The program gets another description ([File.OpenForProgram]),
// which the service does not keep: so inotify's IN_CLOSE ([File.Watch]) fires when the program's last descriptor and
// mapping of it have gone, and [File.InUse] tells for certain. The path stays until [File.Close], for whoever has to
// look after the program when the service has died.
//
// An [Anonymous] file has no name, and cannot be made shorter. It is for programs that get their descriptor of it over a socket.
package shm
