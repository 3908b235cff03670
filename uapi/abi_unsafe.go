package uapi

import "unsafe"

// SizeOf returns the size of T in bytes, in Go and in C.
func SizeOf[T any]() int {
	var v T
	return int(unsafe.Sizeof(v))
}

// Decode returns a copy of the T at the start of b. If b is too short, Decode returns a zero T and false. T must be a
// type of this package, or a type of fixed size without pointers and without implicit padding.
func Decode[T any](b []byte) (T, bool) {
	var v T
	if len(b) < int(unsafe.Sizeof(v)) {
		return v, false
	}
	copy(bytesOf(&v), b)
	return v, true
}

// DecodePrefix returns the T at the start of b. The input may come from another version of the ABI. Missing bytes at
// the end of T are zero. The result excess reports whether b has a non-zero byte after T. Such a byte requests a
// feature that this version does not have. The kernel returns EOPNOTSUPP in this case.
func DecodePrefix[T any](b []byte) (v T, excess bool) {
	n := copy(bytesOf(&v), b)
	for _, c := range b[n:] {
		if c != 0 {
			return v, true
		}
	}
	return v, false
}

// Encode copies v to dst and returns the number of bytes written. If dst is shorter than SizeOf[T], Encode truncates v
// to the length of dst. An older caller expects this shorter response.
func Encode[T any](dst []byte, v *T) int {
	return copy(dst, bytesOf(v))
}

// AppendTo appends v to dst and returns the extended slice.
func AppendTo[T any](dst []byte, v *T) []byte {
	return append(dst, bytesOf(v)...)
}

func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// The unions. Each of the following methods returns a variant of the union in place. All variants of a union share the
// same bytes.

// RDMA returns the variant for RDMA reads and writes.
func (w *SendWR) RDMA() *SendWRRDMA { return (*SendWRRDMA)(unsafe.Pointer(&w.WR)) }

// Atomic returns the variant for atomics.
func (w *SendWR) Atomic() *SendWRAtomic { return (*SendWRAtomic)(unsafe.Pointer(&w.WR)) }

// UD returns the variant for datagrams.
func (w *SendWR) UD() *SendWRUD { return (*SendWRUD)(unsafe.Pointer(&w.WR)) }

// RDMA returns the variant for RDMA reads, RDMA writes and atomic writes.
func (w *RXESendWR) RDMA() *RXESendWRRDMA { return (*RXESendWRRDMA)(unsafe.Pointer(&w.WR)) }

// Flush returns the variant for flushes.
func (w *RXESendWR) Flush() *RXESendWRFlush { return (*RXESendWRFlush)(unsafe.Pointer(&w.WR)) }

// Atomic returns the variant for atomics.
func (w *RXESendWR) Atomic() *RXESendWRAtomic { return (*RXESendWRAtomic)(unsafe.Pointer(&w.WR)) }

// UD returns the variant for datagrams.
func (w *RXESendWR) UD() *RXESendWRUD { return (*RXESendWRUD)(unsafe.Pointer(&w.WR)) }

// MW returns the variant for binding a memory window.
func (w *RXESendWR) MW() *RXESendWRMW { return (*RXESendWRMW)(unsafe.Pointer(&w.WR)) }
