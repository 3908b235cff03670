package ibtest

import "unsafe"

// bytesOf returns the memory of words as bytes.
func bytesOf(words []uint64) []byte {
	if len(words) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
}
