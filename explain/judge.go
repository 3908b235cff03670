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
	at      time.Time // when the failure happened
	since   time.Time
	v       driver.Violation
	count   int
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
func (q *qpFacts) judgeRefusal(f *driver.RefusedRequest) verdict {
	d := judge(q.refusalRow(f), &values{q: q, v: f.Violation, at: f.Time}, FaultResponder)
	if f.Syndrome == roce.NAKRemoteOperationalError { // the rule concerns the receive, not the request
		return d.of(FaultSelf.String())
	}
	return d
}

// judgeUnsent judges packets that could not be sent.
func (r *Recorder) judgeUnsent(q *qpFacts, f *driver.UnsentPackets) verdict {
	x := &values{q: q, at: f.Time, device: q.ref.Device, mtu: f.MTU, v: driver.Violation{Length: uint64(f.Longest)}}
	if d := r.devices[q.ref.Device]; d != nil && (d.Down || d.Lost != "") {
		x.since = d.Since
	}
	switch {
	case f.Err == nil:
		return judge("port-down", x, FaultRequester)
	case errors.Is(f.Err, link.ErrTooLong):
		return judge("too-long", x, FaultRequester)
	case errors.Is(f.Err, link.ErrNoRoute):
		return judge("no-route", x, FaultRequester)
	}
	x.err = f.Err.Error()
	return judge("not-sent", x, FaultRequester)
}

// judgeFlush judges the first flushed work request of a queue pair that has no earlier cause.
func (r *Recorder) judgeFlush(q *qpFacts, f *driver.FailedCompletion) verdict {
	x := &values{q: q, at: f.Time, since: q.changed}
	row := "failed-before"
	switch q.cause.Reason {
	case driver.ByProgram:
		if q.ref.State == ib.QPErr {
			row = "modified"
		}
	case driver.ByDevice:
		row = "device-error"
	case driver.ByContext:
		row = "context-ended"
	case driver.ByQueueMemory:
		row = "queue-memory"
	case driver.ByCQ:
		row = "cq-overrun"
	}
	return judge(row, x, FaultRequester)
}

// judgeCompletion judges a failed completion. With both set it uses the facts of the other end for every user, and
// otherwise only if the other end belongs to the same user.
func (r *Recorder) judgeCompletion(q *qpFacts, f *driver.FailedCompletion, both bool) verdict {
	x := &values{q: q, at: f.Time, v: f.Violation}
	local := f.Status == uapi.WCLocProtErr || f.Status == uapi.WCLocQPOpErr || f.Status == uapi.WCLocLenErr
	if f.Recv && !local {
		return judge(ruleRows[f.Violation.Rule], x, FaultResponder)
	}
	switch f.Status {
	case uapi.WCRetryExcErr:
		return r.judgeTimeout(q, f, both)
	case uapi.WCRNRRetryExcErr:
		return r.judgeNotReady(q, f, both)
	case uapi.WCRemInvReqErr, uapi.WCRemAccessErr, uapi.WCRemOpErr:
		return r.judgeNAK(q, f, both)
	case uapi.WCBadRespErr:
		return judge("bad-response", x, FaultRequester)
	}
	d := judge(ruleRows[f.Violation.Rule], x, FaultRequester)
	if local {
		return d.of(FaultSelf.String())
	}
	return d
}

// peerOf returns the device and the facts of the other end. peer is nil if it is unknown or hidden.
func (r *Recorder) peerOf(q *qpFacts, both bool) (d *deviceFacts, peer *qpFacts, hidden bool) {
	if d = r.byAddr[q.ref.Peer]; d == nil {
		return nil, nil, false
	}
	peer = r.qps[qpKey{d.Name, q.ref.DestQPN}]
	if peer != nil && !both && peer.program.User != q.program.User {
		return d, nil, true
	}
	return d, peer, false
}

// judgeNAK judges a work request that the peer has refused.
func (r *Recorder) judgeNAK(q *qpFacts, f *driver.FailedCompletion, both bool) verdict {
	x := &values{q: q, at: f.Time}
	_, peer, _ := r.peerOf(q, both)
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
	d := judge(ruleRows[x.v.Rule], x, FaultRequester)
	if f.Status == uapi.WCRemOpErr {
		return d.of("the peer")
	}
	return d
}

// judgeNotReady judges a work request for which the peer had no receive.
func (r *Recorder) judgeNotReady(q *qpFacts, f *driver.FailedCompletion, both bool) verdict {
	x := &values{q: q, at: f.Time, since: f.Since, count: f.Attempts}
	// A fault rule of this service is not a fact about another user.
	if _, peer, _ := r.peerOf(q, true); peer != nil && peer.evidence != nil {
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
	if d := r.devices[q.ref.Device]; d != nil && d.Down {
		x.since = d.Since
		return judge("port-down", x, FaultRequester)
	}
	d, peer, hidden := r.peerOf(q, both)
	if d != nil && d.Lost != "" {
		x.since, x.device, x.reason = d.Since, d.Name, d.Lost
		return judge("peer-device", x, FaultRequester)
	}
	if d != nil && d.Down {
		x.since, x.device = d.Since, d.Name
		return judge("peer-port-down", x, FaultRequester)
	}
	if peer != nil {
		if v, ok := r.judgePeer(q, peer, f, x); ok {
			return v
		}
	}
	if q.evidence != nil && recent(q.lost.Time) {
		x.count = q.lostN
		return judge("packets-lost", x, FaultRequester)
	}
	if other := peer; other != nil && other.evidence != nil && recent(other.lost.Time) {
		x.count, x.device = other.lostN, other.ref.Device
		return judge("packets-lost", x, FaultRequester)
	}
	x.since = time.Time{}
	switch {
	case peer != nil:
		x.peer = peer
		return judge("no-answer-here", x, FaultRequester)
	case d != nil && !hidden:
		no, ok := r.noQP[qpKey{d.Name, q.ref.DestQPN}]
		if ok && recent(no.Time) && no.Source == q.ref.Local {
			return judge("no-qp", x, FaultRequester)
		}
	}
	return judge("no-answer", x, FaultRequester)
}

// judgePeer judges a work request without an answer by the state of its peer; false if the state does not explain it.
func (r *Recorder) judgePeer(q, peer *qpFacts, f *driver.FailedCompletion, x *values) (verdict, bool) {
	y := *x
	y.peer, y.since = peer, peer.changed
	switch {
	case peer.gone && peer.program.Ending:
		return judge("peer-ended", &y, FaultRequester), true
	case peer.gone:
		return judge("peer-closed", &y, FaultRequester), true
	case peer.ref.State == ib.QPErr:
		y.peerWhy = peer.cause.String()
		if peer.evidence != nil && peer.why != "" {
			y.peerWhy = peer.why
		}
		if v := peer.evidence; v != nil && v.refusal.Answered && v.refusal.PSN == f.PSN &&
			v.refusal.Violation.Rule == driver.RuleReceiveLength {
			z := values{v: v.refusal.Violation}
			z.v.Length, z.v.More = f.Length, false
			y.peerWhy = expand(rows["receive-too-short"].Text, &z)
		}
		return judge("peer-in-error", &y, FaultRequester), true
	case peer.ref.State < ib.QPRTR:
		y.since = time.Time{}
		return judge("peer-not-ready", &y, FaultRequester), true
	}
	if peer.evidence == nil || peer.drop.Time.Before(f.Since) || peer.drop.Source != q.ref.Local {
		return verdict{}, false
	}
	y.since, y.device = time.Time{}, peer.ref.Device
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
