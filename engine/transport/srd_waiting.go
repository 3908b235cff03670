package transport

import "verbena/roce"

// notReady makes a packet in flight wait, since the peer has no receive. If it is the probe, the refusal counts for all
// waiting messages. Each message therefore fails after the time that its own retransmissions would take.
func (s *SRDSender) notReady(psn roce.PSN, k *srdSlot, now int64) {
	if s.pending && psn == s.probe {
		s.pending = false
		s.refused = min(s.refused+1, 32)
		for at := s.una; at != s.next && s.waiting > 0; at = at.Next() {
			if x := s.slot(at); x.state == srdWaiting {
				s.spendRetry(x.msg)
			}
		}
	}
	if s.spendRetry(k.msg) {
		s.leave(k)
		k.state = srdWaiting
		s.waiting++
	}
	s.waitOn(now)
}

// spendRetry counts a refusal for a message. It returns false if the message fails.
func (s *SRDSender) spendRetry(i int32) bool {
	m := &s.msgs[i]
	m.refusals++
	switch m.rnr {
	case 0:
		s.fail(i, roce.SRDNotReady)
		return false
	case RNRForever:
	default:
		m.rnr--
	}
	return true
}

// waitOn sets the time of the next probe if packets wait and no probe is pending.
func (s *SRDSender) waitOn(now int64) {
	switch {
	case s.pending || s.retryAt != 0:
	case s.waiting == 0:
		s.refused = 0
	default:
		s.retryAt = now + s.rnrWait()
		s.arm(s.retryAt)
	}
}

// rnrWait returns the time until the next probe.
func (s *SRDSender) rnrWait() int64 {
	if s.RNRRetry != RNRForever {
		return srdRNRWait << min(s.refused, max(s.RNRRetry, 1)-1)
	}
	return min(srdRNRWait<<s.refused, max(MaxRNRWait, s.MaxRNRWait))
}

// ready notes that the peer has receives, and sends two of the waiting packets.
func (s *SRDSender) ready(now int64) {
	s.refused, s.retryAt = 0, 0
	for range 2 {
		s.release()
	}
	s.waitOn(now)
}

// release makes the oldest waiting packet due. It returns false if none waits.
func (s *SRDSender) release() (psn roce.PSN, ok bool) {
	if s.waiting == 0 {
		return 0, false
	}
	for psn = s.una; psn != s.next; psn = psn.Next() {
		if k := s.slot(psn); k.state == srdWaiting {
			s.leave(k)
			k.state = srdDue
			s.due++
			return psn, true
		}
	}
	return 0, false
}

// skipProbe skips the probe after a timeout, and returns true, if it would come too early after the last one.
func (s *SRDSender) skipProbe(now int64) bool {
	if !s.dead && s.silent <= srdEager || now-s.sent >= min(s.ProbeGap, srdMaxGap) {
		return false
	}
	s.skipped++
	return true
}
