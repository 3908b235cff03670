package efa

import "verbena/uapi"

// statuses are the statuses of verbs, by those of EFA. (to_ibv_status of rdma-core)
var statuses = map[CompStatus]uapi.WCStatus{
	IOCompStatusOK:                      uapi.WCSuccess,
	IOCompStatusFlushed:                 uapi.WCWRFlushErr,
	IOCompStatusLocalErrorUnsupportedOp: uapi.WCLocQPOpErr,
	IOCompStatusLocalErrorInvalidLKey:   uapi.WCLocProtErr,
	IOCompStatusLocalErrorBadLength:     uapi.WCLocLenErr,
	IOCompStatusRemoteErrorBadAddress:   uapi.WCRemAccessErr,
	IOCompStatusRemoteErrorAbort:        uapi.WCRemAbortErr,
	IOCompStatusRemoteErrorBadDestQPN:   uapi.WCRemInvRDReqErr,
	IOCompStatusRemoteErrorRNR:          uapi.WCRNRRetryExcErr,
	IOCompStatusRemoteErrorBadLength:    uapi.WCRemInvReqErr,
	IOCompStatusRemoteErrorBadStatus:    uapi.WCBadRespErr,
	IOCompStatusLocalErrorUnrespRemote:  uapi.WCRespTimeoutErr,
	IOCompStatusLocalErrorUnreachRemote: uapi.WCRetryExcErr,
	IOCompStatusRemoteErrorUnknownPeer:  uapi.WCRemOpErr,
}

var fromVerbs = func() map[uapi.WCStatus]CompStatus {
	m := map[uapi.WCStatus]CompStatus{}
	for c, s := range statuses {
		m[s] = c
	}
	return m
}()

// Verbs returns the status of verbs.
func (c CompStatus) Verbs() uapi.WCStatus {
	if s, ok := statuses[c]; ok {
		return s
	}
	return uapi.WCGeneralErr
}

// StatusOf returns the status of EFA for one of verbs.
func StatusOf(s uapi.WCStatus) CompStatus {
	if c, ok := fromVerbs[s]; ok {
		return c
	}
	return IOCompStatusLocalErrorQPInternalError
}
