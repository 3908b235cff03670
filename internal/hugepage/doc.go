// Package hugepage makes shared memory that the processor can map by huge pages: copies of data that no cache holds are
// faster then, by about a fifth. Large mappings lie at the same place within a huge page as in their file, and the
// kernel is asked to join the file's pages (madvise(2), MADV_COLLAPSE, Linux 6.1), which it does whatever
// /sys/kernel/mm/transparent_hugepage says. Where it cannot nothing else changes.
package hugepage
