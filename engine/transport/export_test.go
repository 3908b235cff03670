package transport

// SetNumber sets the number of the next request of a sender without requests in flight.
func (s *Sender) SetNumber(n uint32) { s.flight.head, s.flight.tail, s.at = n, n, n }
