package explain

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"verbena/driver"
	"verbena/ib"
	"verbena/internal/qpinfo"
	"verbena/link"
	"verbena/roce"
	"verbena/uapi"
)

// verdict is a row of the table with its values.
type verdict struct {
	row    *Row
	why    string
	clause string
	remedy string
	fault  string
	since  time.Time
}

// values are the values of a template.
type values struct {
	q       *qpFacts // the failed queue pair
	peer    *qpFacts // the other end; nil if unknown
	peerWhy string
	owner   *qpFacts  // the end whose memory a key leads to; nil if unknown
	at      time.Time // when the failure happened
	since   time.Time
	v       driver.Violation
	count   int
	number  uint32
	delay   time.Duration
	timeout time.Duration
	wait    time.Duration
	state   ib.QPState // state in which the peer stopped to receive
	device  string
	mtu     int
	err     string
	reason  string
	port    string
	man     string

	peerAddr string // replaces q.ref.Peer, for a connection without a queue pair
	peerPID  int
}

// judge returns the verdict of a row. self is the role of the failed queue pair: FaultRequester or FaultResponder.
func judge(row string, x *values, self Fault) verdict {
	r := rows[row]
	if r == nil {
		r = rows["unknown"]
	}
	d := verdict{row: r, why: expand(r.Text, x), clause: expand(r.Clause, x), remedy: expand(r.Remedy, x),
		since: x.since, fault: r.Fault.String()}
	switch r.Fault {
	case FaultRequester, FaultResponder:
		if d.fault = "the peer"; r.Fault == self {
			d.fault = FaultSelf.String()
		}
	}
	return d
}

// of returns the verdict with another end at fault.
func (d verdict) of(fault string) verdict {
	if d.row.Fault != FaultUnknown {
		d.fault = fault
	}
	return d
}

// expand replaces the words in braces of a template. A value that is not known becomes "unknown".
func expand(text string, x *values) string {
	if !strings.Contains(text, "{") {
		return text
	}
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(text, "{")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		word, after, _ := strings.Cut(rest, "}")
		b.WriteString(cmp.Or(x.value(word), "unknown"))
		text = after
	}
}

// value returns the value of a word, "" if it is unknown.
func (x *values) value(word string) string {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	switch word {
	case "key":
		return fmt.Sprintf("%#x", x.v.Key)
	case "right":
		return x.v.Right.String()
	case "flags":
		return "IBV_ACCESS_" + strings.ReplaceAll(x.v.Right.String(), "|", "|IBV_ACCESS_")
	case "addr":
		return fmt.Sprintf("%#x", x.v.Addr)
	case "first":
		return fmt.Sprintf("%#x", x.v.First)
	case "length":
		if x.v.More {
			return "at least " + number(x.v.Length)
		}
		if x.v.Length == 0 {
			return ""
		}
		return number(x.v.Length)
	case "limit":
		return number(x.v.Limit)
	case "count":
		return number(uint64(x.count))
	case "owner":
		if x.owner != nil {
			return strconv.Itoa(x.owner.program.PID)
		}
	case "number":
		return number(uint64(x.number))
	case "delay":
		return formatDuration(x.delay)
	case "grant":
		if x.v.Window {
			return "memory window"
		}
		return "region"
	case "grant with":
		if x.v.Window {
			return "bind the window with"
		}
		return "register the memory with"
	case "device":
		return x.device
	case "mtu":
		return strconv.Itoa(x.mtu)
	case "err":
		return x.err
	case "reason":
		return x.reason
	case "port":
		return x.port
	case "man":
		return x.man
	case "since":
		if !x.since.IsZero() {
			return x.since.Format("15:04:05.000")
		}
	case "timeout":
		return formatDuration(x.timeout)
	case "wait":
		return formatDuration(x.wait)
	case "times":
		return times(x.count)
	case "naks":
		if x.count == 0 {
			return "RNR NAKs"
		}
		return plural(x.count, "RNR NAK")
	case "ago":
		if !x.since.IsZero() {
			return formatDuration(x.at.Sub(x.since))
		}
	}
	switch {
	case word == "peer" && x.peerAddr != "":
		return x.peerAddr
	case word == "peerpid" && x.peerPID != 0:
		return strconv.Itoa(x.peerPID)
	}
	if x.q != nil {
		switch word {
		case "qp":
			return number(uint64(x.q.ref.Num))
		case "local":
			if x.q.ref.Local.IsValid() {
				return x.q.ref.Local.String()
			}
		case "peer":
			if x.q.ref.Peer.IsValid() {
				return x.q.ref.Peer.String()
			}
		case "peerqp":
			return number(uint64(x.q.ref.DestQPN))
		case "type":
			return x.q.ref.Type.String()
		case "state":
			return x.q.ref.State.String()
		}
	}
	if x.peer != nil {
		switch word {
		case "peerstate":
			if x.state != x.peer.ref.State && x.peer.gone {
				return x.state.String()
			}
			return x.peer.ref.State.String()
		case "peertype":
			return x.peer.ref.Type.String()
		case "peerpid":
			return strconv.Itoa(x.peer.program.PID)
		case "peerwhy":
			return x.peerWhy
		}
	}
	return ""
}

// refusalRow returns the name of the row of a refused request.
func (q *qpFacts) refusalRow(f *driver.RefusedRequest) string {
	switch {
	case !f.Answered && f.Violation.Rule == driver.RuleNoReceive:
		return "datagram-no-receive"
	case !f.Answered && f.Violation.Rule == driver.RuleReceiveLength && q.ref.Type == ib.QPTypeUD:
		return "datagram-short"
	}
	return ruleRows[f.Violation.Rule]
}

// judgeRefusal judges a request that the queue pair has refused.
func (r *Recorder) judgeRefusal(q *qpFacts, f *driver.RefusedRequest) verdict {
	d := r.judgeRule(q.refusalRow(f), q, &values{q: q, v: f.Violation, at: f.Time}, FaultResponder)
	if f.Syndrome == roce.NAKRemoteOperationalError { // the rule concerns the receive, not the request
		return d.of(FaultSelf.String())
	}
	return d
}

// keyEnds are the descriptions of the ends of keys.
var keyEnds = [driver.NumKeyEnds]string{
	driver.RegionDeregistered: "its region was deregistered",
	driver.RegionChanged:      "its region was registered again (ibv_rereg_mr)",
	driver.Invalidated:        "it was invalidated",
	driver.WindowRebound:      "its memory window was bound again",
	driver.WindowDeallocated:  "its memory window was deallocated",
}

// judgeRule judges a violated rule of a row. owner is the end to whose memory the key leads: a key that this end had,
// and took away, is its doing.
func (r *Recorder) judgeRule(row string, owner *qpFacts, x *values, self Fault) verdict {
	if row == ruleRows[driver.RuleKey] && owner != nil {
		k, ok := r.endedKey(owner, x.v.Key)
		if ok && k.program.PID == owner.program.PID && !k.at.After(x.at) {
			x.since, x.reason = k.at, keyEnds[k.how]
			row = "key-ended"
		}
	}
	if row == ruleRows[driver.RuleMemory] && owner != nil && owner.evidence != nil {
		x.owner = owner
		switch owner.life {
		case Ended:
			row = "memory-ended"
		case Executed:
			row = "memory-executed"
		}
	}
	return judge(row, x, self)
}

// endedKey returns a key that the user of a queue pair had.
func (r *Recorder) endedKey(owner *qpFacts, key uint32) (endedKey, bool) {
	u := r.users[owner.program.User]
	if u == nil {
		return endedKey{}, false
	}
	k, ok := u.ended[regionKey{owner.ref.Device, key}]
	return k, ok
}

// portRow returns the row for a port that is down: row, or another row if the interface is down.
func portRow(row string, d *deviceFacts) string {
	if d != nil && d.Down != "" && d.Down != d.Name {
		return row + "-interface"
	}
	return row
}

// judgeUnsent judges packets that could not be sent.
func (r *Recorder) judgeUnsent(q *qpFacts, f *driver.UnsentPackets) verdict {
	x := &values{q: q, at: f.Time, device: q.ref.Device, mtu: f.MTU, v: driver.Violation{Length: uint64(f.Longest)}}
	d := r.devices[q.ref.Device]
	if d != nil && (d.Down != "" || d.Lost != "") {
		x.since, x.port = d.Since, d.Down
	}
	switch {
	case f.Err == nil && d != nil && d.Down == "" && d.Lost == "" && !slices.Contains(d.Addrs, q.ref.Local):
		return judge("address-gone", x, FaultRequester)
	case f.Err == nil:
		return judge(portRow("port-down", d), x, FaultRequester)
	case errors.Is(f.Err, link.ErrTooLong):
		return judge("too-long", x, FaultRequester)
	case errors.Is(f.Err, link.ErrNoRoute):
		return judge("no-route", x, FaultRequester)
	}
	x.err = f.Err.Error()
	return judge("not-sent", x, FaultRequester)
}

// lossRow returns the row for a lost device, or another row if the service was stopped.
func lossRow(row, loss string) string {
	switch row {
	case "device-lost", "device-error", "context-ended", "peer-device", "peer-device-was":
		if loss == ServiceStopped {
			return "service-stopped"
		}
	}
	return row
}

// judgeFlush judges the first flushed work request of a queue pair that has no earlier cause.
func (r *Recorder) judgeFlush(q *qpFacts, f *driver.FailedCompletion) verdict {
	x := &values{q: q, at: f.Time, since: q.changed}
	row := "failed-before"
	lost := r.devices[q.ref.Device]
	if lost != nil && lost.loss != "" {
		x.device, x.reason = lost.Name, lost.loss
	}
	switch q.cause.Reason {
	case driver.ByProgram:
		if q.ref.State == ib.QPErr {
			row = "modified"
		}
	case driver.ByDevice, driver.ByContext:
		row = "device-error"
		if x.reason == "" && q.cause.Reason == driver.ByContext {
			row = "context-ended"
		}
	case driver.ByQueueMemory:
		row = "queue-memory"
	case driver.ByCQ:
		row = "cq-overrun"
	}
	if row = lossRow(row, x.reason); row == "service-stopped" {
		x.since = lost.lostAt
	}
	return judge(row, x, FaultRequester)
}

// judgeCompletion judges a failed completion. With both set it uses the facts of the other end for every user, and
// otherwise only if the other end belongs to the same user.
func (r *Recorder) judgeCompletion(q *qpFacts, f *driver.FailedCompletion, both bool) verdict {
	x := &values{q: q, at: f.Time, v: f.Violation}
	local := f.Status == uapi.WCLocProtErr || f.Status == uapi.WCLocQPOpErr || f.Status == uapi.WCLocLenErr
	if f.Recv && !local {
		return r.judgeRule(ruleRows[f.Violation.Rule], q, x, FaultResponder)
	}
	switch f.Status {
	case uapi.WCRetryExcErr, uapi.WCRespTimeoutErr:
		return r.judgeTimeout(q, f, both)
	case uapi.WCRNRRetryExcErr:
		return r.judgeNotReady(q, f, both)
	case uapi.WCRemInvReqErr, uapi.WCRemAccessErr, uapi.WCRemOpErr:
		return r.judgeNAK(q, f, both)
	case uapi.WCBadRespErr:
		return judge("bad-response", x, FaultRequester)
	}
	d := r.judgeRule(ruleRows[f.Violation.Rule], q, x, FaultRequester)
	if local {
		return d.of(FaultSelf.String())
	}
	return d
}

// peerOf returns the device and the facts of the other end. peer is nil if no queue pair has its number, or if it
// belongs to another user and both is false. A user must not learn the difference: no other fact that a user sees may
// depend on the queue pairs of other users.
func (r *Recorder) peerOf(q *qpFacts, both bool) (d *deviceFacts, peer *qpFacts) {
	if d = r.byAddr[q.ref.Peer]; d == nil {
		return nil, nil
	}
	peer = r.qps[qpKey{d.Name, q.ref.DestQPN}]
	if peer != nil && !both && peer.program.User != q.program.User {
		return d, nil
	}
	return d, peer
}

// judgeNAK judges a work request that the peer has refused.
func (r *Recorder) judgeNAK(q *qpFacts, f *driver.FailedCompletion, both bool) verdict {
	x := &values{q: q, at: f.Time}
	_, peer := r.peerOf(q, both)
	if peer == nil || peer.evidence == nil || !peer.refusal.Answered || peer.refusal.PSN != f.PSN ||
		peer.refusal.Time.Before(f.Since) {
		return judge("peer-refused", x, FaultRequester)
	}
	x.v, x.peer = peer.refusal.Violation, peer
	if x.v.Rule == driver.RuleReceiveLength {
		x.v.Length, x.v.More = f.Length, false
	}
	if x.v.Rule == driver.RuleUnknown {
		return judge("peer-refused", x, FaultRequester)
	}
	d := r.judgeRule(ruleRows[x.v.Rule], peer, x, FaultRequester)
	if f.Status == uapi.WCRemOpErr {
		return d.of("the peer")
	}
	return d
}

// judgeNotReady judges a work request for which the peer had no receive.
func (r *Recorder) judgeNotReady(q *qpFacts, f *driver.FailedCompletion, both bool) verdict {
	x := &values{q: q, at: f.Time, since: f.Since, count: f.Attempts}
	// A fault rule of this service is not a fact about another user.
	if _, peer := r.peerOf(q, true); peer != nil && peer.evidence != nil {
		if peer.refusal.Violation.Rule == driver.RuleInjected && !peer.refusal.Time.Before(f.Since) {
			return judge("rnr-injected", x, FaultRequester)
		}
	}
	return judge("no-receive", x, FaultRequester)
}

// judgeTimeout judges a work request without an answer.
func (r *Recorder) judgeTimeout(q *qpFacts, f *driver.FailedCompletion, both bool) verdict {
	x := &values{q: q, at: f.Time, since: f.Since, device: q.ref.Device}
	recent := func(t time.Time) bool { return !t.IsZero() && !t.Before(f.Since) }
	if q.evidence != nil && recent(q.unsent.Time) {
		return r.judgeUnsent(q, &q.unsent)
	}
	if d := r.devices[q.ref.Device]; d != nil && d.Down != "" {
		x.since, x.port = d.Since, d.Down
		return judge(portRow("port-down", d), x, FaultRequester)
	}
	d, peer := r.peerOf(q, both)
	switch {
	case d != nil && d.Lost != "":
		x.since, x.device, x.reason = d.Since, d.Name, d.Lost
		return judge(lossRow("peer-device", d.Lost), x, FaultRequester)
	case d != nil && d.Down != "":
		x.since, x.device, x.port = d.Since, d.Name, d.Down
		return judge(portRow("peer-port-down", d), x, FaultRequester)
	case d != nil && recent(d.lostAt) && (peer == nil || peer.gone || peer.ref.State == ib.QPErr):
		x.since, x.device, x.reason = d.lostAt, d.Name, d.loss
		return judge(lossRow("peer-device-was", d.loss), x, FaultRequester)
	}
	if v, ok := r.judgeArrival(q, peer, d, both, f, x); ok {
		return v
	}
	// The earliest fact decides: later ones did not prevent the first answer.
	earliest, at := r.judgeImpairment(q, peer, f, x)
	if own := r.devices[q.ref.Device]; own.wasDown(f.Since) {
		y := *x
		y.since, y.port, y.device = own.downAt, own.down, own.Name
		v := judge("port-was-down", &y, FaultRequester)
		earliest, at = &v, f.Since
	} else if d.wasDown(f.Since) {
		y := *x
		y.since, y.port, y.device = d.downAt, d.down, d.Name
		v := judge("port-was-down", &y, FaultRequester)
		earliest, at = &v, f.Since
	}
	if peer != nil && (earliest == nil || !peer.left.at.After(at)) {
		if v, ok := r.judgePeer(peer, f, x); ok {
			return v
		}
	}
	if earliest != nil {
		return *earliest
	}
	x.since = time.Time{}
	switch {
	case peer != nil && peer.ready.After(q.ready) && peer.starts > 1:
		x.since, x.peer = peer.ready, peer
		return judge("peer-reconnected", x, FaultRequester)
	case peer != nil:
		x.peer = peer
		return judge("no-answer-here", x, FaultRequester)
	case d != nil && !f.Acknowledged && !both:
		return judge("no-own-qp", x, FaultRequester)
	}
	return judge(presentRow("no-answer", f), x, FaultRequester)
}

// presentRow returns the row for a peer that does not answer, or row-more if it has acknowledged packets before.
func presentRow(row string, f *driver.FailedCompletion) string {
	if f.Acknowledged {
		return row + "-more"
	}
	return row
}

// judgeArrival judges a work request without an answer by packets that have arrived all the same: at a queue pair that
// drops them, at none, or at this end with PSNs that it has never sent. ok is false if no such packet is known.
func (r *Recorder) judgeArrival(q, peer *qpFacts, d *deviceFacts, both bool, f *driver.FailedCompletion, x *values) (
	v verdict, ok bool) {
	y := *x
	y.since = time.Time{}
	if f.Foreign.N > 0 {
		y.count, y.number = f.Foreign.N, uint32(f.Foreign.PSN)
		return judge("psn-mismatch", &y, FaultRequester), true
	}
	if d != nil && peer == nil && both {
		no, found := r.noQP[qpKey{d.Name, q.ref.DestQPN}]
		if found && !no.Time.Before(f.Since) && no.Source == q.ref.Local {
			return judge(presentRow("no-qp", f), &y, FaultRequester), true
		}
	}
	if peer == nil || peer.evidence == nil || peer.drop.Time.Before(f.Since) || peer.drop.Source != q.ref.Local {
		return verdict{}, false
	}
	y.peer, y.device = peer, peer.ref.Device
	switch peer.drop.Reason {
	case driver.DropSource:
		return judge("peer-other", &y, FaultRequester), true
	case driver.DropService:
		return judge("peer-service", &y, FaultRequester), true
	case driver.DropStalled:
		return judge("peer-stalled", &y, FaultRequester), true
	}
	return verdict{}, false
}

// impairmentRows are the rows of impaired packets.
var impairmentRows = [link.NumImpairments]string{
	link.Dropped: "packets-lost", link.Damaged: "packets-damaged", link.Delayed: "packets-delayed",
	link.Lost: "packets-lost-by-link", link.Overflowed: "link-overflow",
}

// judgeImpairment judges the first impairment, at either end, of the packets of a request without an answer, or of its
// answers. It returns nil if no impairment explains the failure: losses explain it if they are at least as many as the
// transmissions, and delays if the last answer came too late.
func (r *Recorder) judgeImpairment(q, peer *qpFacts, f *driver.FailedCompletion, x *values) (v *verdict, at time.Time) {
	var first *ImpairedPackets
	var delay time.Duration // in both directions
	lost, count := 0, 0
	for _, end := range []*qpFacts{q, peer} {
		if end == nil || end.evidence == nil {
			continue
		}
		var longest time.Duration
		for i := range end.impaired {
			e := &end.impaired[i]
			switch {
			case e.Time.Before(f.Since):
				continue
			case e.Kind == link.Delayed:
				longest = max(longest, e.Delay)
			default:
				lost += e.Packets
				if first == nil || e.Time.Before(first.Time) {
					first = e
				}
			}
		}
		delay += longest
		if longest > 0 && delay >= f.Time.Sub(f.Since) {
			y := *x
			y.device, y.delay, y.timeout, y.wait = end.ref.Device, delay, f.Timeout, f.Time.Sub(f.Since)
			found := judge(impairmentRows[link.Delayed], &y, FaultRequester)
			v, at = &found, f.Since
		}
	}
	if first == nil || lost < f.Attempts {
		return v, at
	}
	for _, end := range []*qpFacts{q, peer} {
		if end != nil && end.evidence != nil {
			for i := range end.impaired {
				if e := &end.impaired[i]; e.Kind == first.Kind && !e.Time.Before(f.Since) {
					count += e.Packets
				}
			}
		}
	}
	y := *x
	y.count, y.device = count, first.Device
	found := judge(impairmentRows[first.Kind], &y, FaultRequester)
	return &found, first.Time
}

// judgePeer judges a work request without an answer by the state of its peer; false if the state does not explain it.
func (r *Recorder) judgePeer(peer *qpFacts, f *driver.FailedCompletion, x *values) (verdict, bool) {
	y := *x
	y.peer, y.since, y.state = peer, peer.left.at, peer.left.state
	atOnce := peer.gone && peer.left.cause.Reason == driver.ByDestroy
	switch why := peer.left.cause.Reason; {
	case atOnce && peer.program.Ending:
		return judge("peer-ended", &y, FaultRequester), true
	case atOnce:
		return judge("peer-closed", &y, FaultRequester), true
	case peer.left.state == ib.QPErr && (why == driver.ByDevice || why == driver.ByContext):
		y.device, y.reason = peer.ref.Device, "in error"
		if d := r.devices[peer.ref.Device]; d != nil && d.loss != "" {
			y.reason = d.loss
		}
		return judge(lossRow("peer-device-was", y.reason), &y, FaultRequester), true
	case peer.left.state == ib.QPErr:
		y.peerWhy = peer.left.cause.String()
		v := peer.evidence
		if v != nil && v.primary != nil && !strings.Contains(rows[v.primary.own.Row].Text, "{ago}") {
			y.peerWhy = v.why
		}
		if v != nil && v.refusal.Answered && v.refusal.PSN == f.PSN && v.refusal.Violation.Rule == driver.RuleReceiveLength {
			z := values{v: v.refusal.Violation}
			z.v.Length, z.v.More = f.Length, false
			y.peerWhy = expand(rows["receive-too-short"].Text, &z)
		}
		return judge("peer-in-error", &y, FaultRequester), true
	case peer.gone:
		y.since = peer.changed
		return judge("peer-closed", &y, FaultRequester), true
	case peer.ref.State < ib.QPRTR && !y.since.IsZero():
		return judge("peer-reset", &y, FaultRequester), true
	case peer.ref.State < ib.QPRTR:
		return judge("peer-not-ready", &y, FaultRequester), true
	}
	return verdict{}, false
}

func sortCauses(list []qpinfo.Cause) {
	slices.SortFunc(list, func(a, b qpinfo.Cause) int { return cmp.Compare(a.ID, b.ID) })
}

// formatDuration formats a duration with two or three digits.
func formatDuration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d us", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	case d < 100*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

func formatBytes(n uint64) string {
	if n == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", n)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
