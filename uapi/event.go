package uapi

// AsyncEventDesc is one record read from an asynchronous event file
// (struct ib_uverbs_async_event_desc).
type AsyncEventDesc struct {
	Element   uint64 // user handle of the CQ, QP, SRQ or WQ; or the port number
	EventType EventType
	Reserved  uint32
}

// CompEventDesc is one record read from a completion channel
// (struct ib_uverbs_comp_event_desc).
type CompEventDesc struct {
	CQHandle uint64 // user handle given when the CQ was created
}

// EventType says what an asynchronous event reports (enum ibv_event_type,
// kernel enum ib_event_type).
type EventType uint32

// The asynchronous events (IBV_EVENT_*).
const (
	EventCQErr EventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
	EventWQFatal
	EventDeviceSpeedChange
)
