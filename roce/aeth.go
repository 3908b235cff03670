package roce

import (
	"fmt"
	"time"
)

// Syndrome is the first byte of an [AETH]. The upper three bits are the kind of an acknowledgement, and the lower five
// bits are a value (IBA 9.7.5.1.2, table 44).
//
//	000 ccccc  ACK      c: credit code
//	001 ttttt  RNR NAK  t: timer code
//	010 xxxxx  reserved
//	011 nnnnn  NAK      n: error code
//	1xx xxxxx  reserved
type Syndrome uint8

// The next constants are the syndromes without a parameter. A NAK moves the requester's queue pair to the error state.
// The exception is a sequence error, which requests a retransmission from the PSN in the BTH on.
const (
	ACKUnlimited              Syndrome = 0x1f // ACK without end-to-end credits
	NAKPSNSequenceError       Syndrome = 0x60
	NAKInvalidRequest         Syndrome = 0x61
	NAKRemoteAccessError      Syndrome = 0x62
	NAKRemoteOperationalError Syndrome = 0x63
	NAKInvalidRDRequest       Syndrome = 0x64
)

const (
	syndromeKind  = 0xe0
	syndromeACK   = 0x00
	syndromeRNR   = 0x20
	syndromeNAK   = 0x60
	syndromeValue = 0x1f
)

// ACK returns the positive acknowledgement with the given number of credits. If the number has no code, ACK uses the
// next smaller number that has one. ACK returns [ACKUnlimited] for credits < 0.
func ACK(credits int) Syndrome {
	if credits < 0 {
		return ACKUnlimited
	}
	code := len(creditCodes) - 1
	for int(creditCodes[code]) > credits {
		code--
	}
	return Syndrome(code)
}

// RNRNAK returns the syndrome for "receiver not ready, retry after t".
func RNRNAK(t RNRTimer) Syndrome { return syndromeRNR | Syndrome(t&syndromeValue) }

// IsACK reports whether s is a positive acknowledgement.
func (s Syndrome) IsACK() bool { return s&syndromeKind == syndromeACK }

// IsRNR reports whether s means that the receiver is not ready.
func (s Syndrome) IsRNR() bool { return s&syndromeKind == syndromeRNR }

// IsNAK reports whether s is a negative acknowledgement other than RNR. The error code of a NAK may be unknown.
func (s Syndrome) IsNAK() bool { return s&syndromeKind == syndromeNAK }

// Credits returns the credits of an ACK, or -1 for no limit. The credits are the number of messages, after the message
// of the ACK's MSN, for which the responder has receives. The result is meaningful only if [Syndrome.IsACK] returns
// true.
func (s Syndrome) Credits() int {
	if c := s & syndromeValue; int(c) < len(creditCodes) {
		return int(creditCodes[c])
	}
	return -1
}

// RNRTimer returns the code of the delay after an RNR NAK. The result is meaningful only if [Syndrome.IsRNR] returns
// true.
func (s Syndrome) RNRTimer() RNRTimer { return RNRTimer(s & syndromeValue) }

// String returns the name of the syndrome for logs.
func (s Syndrome) String() string {
	switch s {
	case ACKUnlimited:
		return "ACK"
	case NAKPSNSequenceError:
		return "NAK PSN Sequence Error"
	case NAKInvalidRequest:
		return "NAK Invalid Request"
	case NAKRemoteAccessError:
		return "NAK Remote Access Error"
	case NAKRemoteOperationalError:
		return "NAK Remote Operational Error"
	case NAKInvalidRDRequest:
		return "NAK Invalid RD Request"
	}
	switch s & syndromeKind {
	case syndromeACK:
		return fmt.Sprintf("ACK credits %d", s.Credits())
	case syndromeRNR:
		return fmt.Sprintf("RNR NAK %v", s.RNRTimer().Duration())
	}
	return fmt.Sprintf("reserved syndrome %#02x", uint8(s))
}

// creditCodes contains the end-to-end credit counts of the codes 0 to 30 (IBA table 46).
var creditCodes = [...]uint16{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
	1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// RNRTimer is the five-bit code of a requester's delay after an RNR NAK (IBA table 45). The code is the min_rnr_timer
// of a queue pair.
type RNRTimer uint8

// Duration returns the time for code t. The codes range from 10 us for 1 to 491.52 ms for 31, and 0 means 655.36 ms.
// Only the low five bits of t are used.
func (t RNRTimer) Duration() time.Duration {
	return time.Duration(rnrTimers[t&syndromeValue]) * 10 * time.Microsecond
}

// The entries of rnrTimers are in units of 10 us.
var rnrTimers = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
	1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// AckTimeout is the five-bit code of the local ACK timeout of a queue pair (IBA 9.7.6.1.3). The timeout is the time
// that the requester waits for a response.
type AckTimeout uint8

// Duration returns 4.096 us * 2^t. The range is from 8.192 us for 1 to about 2 h 26 min for 31. For 0 it returns 0,
// which means no timeout. Only the low five bits of t are used.
func (t AckTimeout) Duration() time.Duration {
	if t &= 31; t != 0 {
		return 4096 * time.Nanosecond << t
	}
	return 0
}
