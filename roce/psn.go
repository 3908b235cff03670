package roce

// PSN is a packet sequence number: 24 bits, counted modulo 2^24 (IBA 9.7.1).
// All methods expect and return values below 2^24; [MakePSN] makes one from
// any number. Two PSNs can be ordered only while they are less than 2^23
// apart, which the protocol guarantees for outstanding packets.
type PSN uint32

// PSNMask has the bits of a PSN; message sequence numbers (MSN), queue pair
// numbers and XRC SRQ numbers have the same 24 bits.
const PSNMask = 1<<24 - 1

// MakePSN takes the low 24 bits of v.
func MakePSN(v uint32) PSN { return PSN(v & PSNMask) }

// Add returns the PSN n packets after p, or before it if n is negative.
func (p PSN) Add(n int) PSN { return PSN((uint32(p) + uint32(n)) & PSNMask) }

// Next returns the PSN after p.
func (p PSN) Next() PSN { return (p + 1) & PSNMask }

// Diff returns the signed distance from q to p, from -2^23 to 2^23-1: positive
// if p comes after q. It is psn_compare of Linux's rxe, in units of packets.
func (p PSN) Diff(q PSN) int { return int(int32((p-q)<<8) >> 8) }

// Since returns the distance from first to p, from 0 to 2^24-1. It is the index of
// a packet in the message that starts with first. A message may have 2^23 packets,
// which exceeds the range of Diff.
func (p PSN) Since(first PSN) int { return int((p - first) & PSNMask) }

// Less reports whether p comes before q.
func (p PSN) Less(q PSN) bool { return int32((p-q)<<8) < 0 }

// In reports whether p is one of the n PSNs that start with first.
func (p PSN) In(first PSN, n int) bool { return int((p-first)&PSNMask) < n }
