// Package shm provides memory that a service shares with a program by a memfd. The program maps the file by a plain
// mmap(2), in which the offset selects the region.
//
// A [File] is sparse. [File.Alloc] reserves the memory of a region, so a lack of memory is an error of Alloc.
// Freeing a region frees its pages at once, including pages that the program still has mapped. Those pages then
// read as zeros. Offsets are never reused, so a stale mapping shows no new data. The service maps the file in few
// large chunks. Pages and chunks are charged to the user. The placement of regions also lets a program that maps
// one region after another use few mappings.
//
// The file is sealed against truncation. A program can enlarge the file, like any file of its own. The kernel
// charges those pages to the program's control group, and no shared file system can become full.
//
// The service keeps one description of the file, for its mappings. The program gets another description
// ([File.OpenForProgram]), which the service does not keep. Inotify's IN_CLOSE ([File.Watch]) therefore fires when
// a descriptor of the program's description is closed, and [File.InUse] reports whether a descriptor or a mapping
// remains. After the death of the service, a launcher finds the file by the program's descriptors ([OpenLink]).
package shm
