package uapi

// AsyncEventDesc is one record read from an asynchronous event file
// (struct ib_uverbs_async_event_desc).
type AsyncEventDesc struct {
	Element   uint64 // user handle of the CQ, QP, SRQ or WQ, or the port number
	EventType EventType
	Reserved  uint32
}

// CompEventDesc is one record read from a completion channel (struct ib_uverbs_comp_event_desc).
type CompEventDesc struct {
	CQHandle uint64 // user handle from the creation of the CQ
}

// EventType is the type of an asynchronous event (enum ibv_event_type, kernel enum ib_event_type).
type EventType uint32

// The asynchronous events (IBV_EVENT_*).
const (
	EventCQErr             EventType = iota // CQ error
	EventQPFatal                            // QP fatal error
	EventQPReqErr                           // QP request error
	EventQPAccessErr                        // QP access error
	EventCommEst                            // communication established
	EventSQDrained                          // send queue drained
	EventPathMig                            // path migrated
	EventPathMigErr                         // path migration error
	EventDeviceFatal                        // device fatal error
	EventPortActive                         // port active
	EventPortErr                            // port error
	EventLIDChange                          // LID change
	EventPKeyChange                         // P_Key change
	EventSMChange                           // SM change
	EventSRQErr                             // SRQ error
	EventSRQLimitReached                    // SRQ limit reached
	EventQPLastWQEReached                   // last WQE reached
	EventClientReregister                   // client reregister
	EventGIDChange                          // GID change
	EventWQFatal                            // WQ fatal error
	EventDeviceSpeedChange                  // device speed change
)
