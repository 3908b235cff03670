// Package shm is memory that a service shares with a program by way of a memfd: the program's descriptor of the file is
// what it maps, by a plain mmap(2), and the offset selects the region.
//
// A [File] is sparse. [File.Alloc] reserves a region, so that a lack of memory is an error there; freeing it gives the
// pages back at once, also those that the program still has mapped, which then read as zeros. Offsets are never used
// twice: a stale mapping can see nothing new. The service maps the file in few large pieces, and pages and pieces are
// charged to the user. Regions lie so that the mappings of a program that maps one after the other are few as well.
//
// The file is sealed against truncation. A program can enlarge it, as any file of its own: the kernel charges those
// pages to the program's control group, and no file system is shared that could become full.
//
// The service keeps one description of the file, for mapping. The program gets another one ([File.OpenForProgram]),
// which the service does not keep: inotify's IN_CLOSE ([File.Watch]) fires when a descriptor of it is closed, and
// [File.InUse] reports whether one, or a mapping, is left. A launcher finds the file by the program's descriptors
// ([OpenLink]) when the service has died.
package shm
