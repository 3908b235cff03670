// Package shm is memory that a service shares with an unmodified program by way of an ordinary file on a memory
// file system: the file's descriptor is what the program maps.
package shm
