package roce

// PSN is a packet sequence number. A PSN has 24 bits and is counted modulo 2^24 (IBA 9.7.1). All methods expect and
// return values below 2^24. [MakePSN] converts any number to a PSN. Two PSNs can be ordered only if their distance is
// less than 2^23. The protocol guarantees this for outstanding packets.
type PSN uint32

// PSNMask contains the bits of a PSN. Message sequence numbers (MSN), queue pair numbers and XRC SRQ numbers have the
// same 24 bits.
const PSNMask = 1<<24 - 1

// MakePSN returns the low 24 bits of v as a PSN.
func MakePSN(v uint32) PSN { return PSN(v & PSNMask) }

// Add returns the PSN that is n packets after p. A negative n means before p.
func (p PSN) Add(n int) PSN { return PSN((uint32(p) + uint32(n)) & PSNMask) }

// Next returns the PSN after p.
func (p PSN) Next() PSN { return (p + 1) & PSNMask }

// Diff returns the signed distance from q to p, from -2^23 to 2^23-1. The distance is positive if p comes after q. Diff
// corresponds to psn_compare of Linux's rxe, in units of packets.
func (p PSN) Diff(q PSN) int { return int(int32((p-q)<<8) >> 8) }

// Since returns the distance from first to p, from 0 to 2^24-1. This distance is the index of a packet in the message
// that starts with first. A message may have 2^23 packets, which exceeds the range of Diff.
func (p PSN) Since(first PSN) int { return int((p - first) & PSNMask) }

// Less reports whether p comes before q.
func (p PSN) Less(q PSN) bool { return int32((p-q)<<8) < 0 }

// In reports whether p is one of the n PSNs that start with first.
func (p PSN) In(first PSN, n int) bool { return int((p-first)&PSNMask) < n }
