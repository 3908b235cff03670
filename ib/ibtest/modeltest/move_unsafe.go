package modeltest

import "unsafe"

// copyRacy copies to or from memory that the device may write to. Without a completion, no order exists between the
// accesses of the consumer and the device. So the race detector is off. Most copies are whole pages, so copyRacy copies
// words where it can.
//
//go:norace
func copyRacy(dst, src []byte) {
	if len(dst) == 0 {
		return
	}
	src = src[:len(dst)]
	to, from := unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0])
	i := 0
	if uintptr(to)%8 == 0 && uintptr(from)%8 == 0 {
		words := unsafe.Slice((*uint64)(to), len(dst)/8)
		for k, v := range unsafe.Slice((*uint64)(from), len(words)) {
			words[k] = v
		}
		i = 8 * len(words)
	}
	for ; i < len(dst); i++ {
		dst[i] = src[i]
	}
}
