// Package shm provides memory that a service shares with a program by a memfd. The program maps the file by a plain
// mmap(2), and the offset selects the region.
//
// A [File] is sparse. [File.Alloc] reserves a region, so that a lack of memory is an error of Alloc. Freeing a region
// frees its pages at once, including pages that the program still has mapped, which then read as zeros. Offsets are
// never reused, so a stale mapping shows no new data. The service maps the file in few large chunks. Pages and chunks
// are charged to the user. Regions are placed so that a program that maps one after the other also needs few mappings.
//
// The file is sealed against truncation. A program can enlarge it, like any file of its own: the kernel charges those
// pages to the program's control group, and no shared file system can become full.
//
// The service keeps one description of the file, for mapping. The program gets another one ([File.OpenForProgram]),
// which the service does not keep. So inotify's IN_CLOSE ([File.Watch]) fires when a descriptor of it is closed, and
// [File.InUse] reports whether a descriptor or a mapping remains. After the death of the service, a launcher finds the
// file by the program's descriptors ([OpenLink]).
package shm
