package roce

// headerLayout contains the offsets of a packet's headers from the start of the BTH, and the total length of the
// headers. The offset of an absent header is 0. The order is fixed (IBA 5.2): XRCETH, DETH, SRDETH, FETH, RETH,
// AtomicETH, AETH, AtomicAckETH, ImmDt, IETH.
type headerLayout struct {
	len          uint8
	xrceth       uint8
	deth         uint8
	srdeth       uint8
	feth         uint8
	reth         uint8
	atomiceth    uint8
	aeth         uint8
	atomicacketh uint8
	immdt        uint8
	ieth         uint8
}

type opcodeInfo struct {
	flags Flags
	headerLayout
}

// afterXRCETHOffset is the offset of the first header after an XRCETH.
const afterXRCETHOffset = BTHLen + XRCETHLen

var (
	layNone      = headerLayout{len: BTHLen}
	layImm       = headerLayout{immdt: BTHLen, len: BTHLen + ImmDtLen}
	layInv       = headerLayout{ieth: BTHLen, len: BTHLen + IETHLen}
	layRETH      = headerLayout{reth: BTHLen, len: BTHLen + RETHLen}
	layRETHImm   = headerLayout{reth: BTHLen, immdt: BTHLen + RETHLen, len: BTHLen + RETHLen + ImmDtLen}
	layAETH      = headerLayout{aeth: BTHLen, len: BTHLen + AETHLen}
	layAtomicAck = headerLayout{aeth: BTHLen, atomicacketh: BTHLen + AETHLen, len: BTHLen + AETHLen + AtomicAckETHLen}
	layAtomic    = headerLayout{atomiceth: BTHLen, len: BTHLen + AtomicETHLen}
	layFlush     = headerLayout{feth: BTHLen, reth: BTHLen + FETHLen, len: BTHLen + FETHLen + RETHLen}

	layDETH    = headerLayout{deth: BTHLen, len: BTHLen + DETHLen}
	layDETHImm = headerLayout{deth: BTHLen, immdt: BTHLen + DETHLen, len: BTHLen + DETHLen + ImmDtLen}

	layCNP = headerLayout{len: BTHLen + CNPLen}

	layXRC        = headerLayout{xrceth: BTHLen, len: afterXRCETHOffset}
	layXRCImm     = headerLayout{xrceth: BTHLen, immdt: afterXRCETHOffset, len: afterXRCETHOffset + ImmDtLen}
	layXRCInv     = headerLayout{xrceth: BTHLen, ieth: afterXRCETHOffset, len: afterXRCETHOffset + IETHLen}
	layXRCRETH    = headerLayout{xrceth: BTHLen, reth: afterXRCETHOffset, len: afterXRCETHOffset + RETHLen}
	layXRCRETHImm = headerLayout{xrceth: BTHLen, reth: afterXRCETHOffset, immdt: afterXRCETHOffset + RETHLen,
		len: afterXRCETHOffset +
			RETHLen + ImmDtLen}
	layXRCAtomic = headerLayout{xrceth: BTHLen, atomiceth: afterXRCETHOffset, len: afterXRCETHOffset + AtomicETHLen}
	layXRCFlush  = headerLayout{xrceth: BTHLen, feth: afterXRCETHOffset, reth: afterXRCETHOffset + FETHLen,
		len: afterXRCETHOffset +
			FETHLen + RETHLen}
)

// afterSRDETHOffset is the offset of the first header after an SRDETH.
const afterSRDETHOffset = BTHLen + DETHLen + SRDETHLen

var (
	laySRD        = headerLayout{deth: BTHLen, srdeth: BTHLen + DETHLen, len: afterSRDETHOffset}
	laySRDImm     = laySRD.with(headerLayout{immdt: afterSRDETHOffset, len: afterSRDETHOffset + ImmDtLen})
	laySRDRETH    = laySRD.with(headerLayout{reth: afterSRDETHOffset, len: afterSRDETHOffset + RETHLen})
	laySRDRETHImm = laySRDRETH.with(headerLayout{
		immdt: afterSRDETHOffset + RETHLen, len: afterSRDETHOffset + RETHLen + ImmDtLen,
	})
)

// with returns the layout with the further headers of x, and the length of x.
func (l headerLayout) with(x headerLayout) headerLayout {
	l.len, l.immdt, l.reth = x.len, max(l.immdt, x.immdt), max(l.reth, x.reth)
	return l
}

// The next constants are combinations of flags that several services share.
const (
	send      = FlagRequest | FlagSend | FlagPayload
	sendFirst = send | FlagFirst | FlagStartsReceive
	sendMid   = send | FlagMiddle
	sendLast  = send | FlagLast | FlagCompletesReceive
	sendOnly  = send | FlagOnly | FlagStartsReceive | FlagCompletesReceive

	write        = FlagRequest | FlagWrite | FlagPayload
	writeFirst   = write | FlagFirst | FlagRETH
	writeMid     = write | FlagMiddle
	writeLast    = write | FlagLast
	writeLastImm = writeLast | FlagImmDt | FlagStartsReceive | FlagCompletesReceive
	writeOnly    = write | FlagOnly | FlagRETH
	writeOnlyImm = writeOnly | FlagImmDt | FlagStartsReceive | FlagCompletesReceive

	readReq     = FlagRequest | FlagRead | FlagOnly | FlagRETH
	atomic      = FlagRequest | FlagAtomic | FlagOnly | FlagAtomicETH
	atomicWrite = FlagRequest | FlagAtomicWrite | FlagOnly | FlagRETH | FlagPayload
	flush       = FlagRequest | FlagFlush | FlagOnly | FlagFETH | FlagRETH

	readResp      = FlagResponse | FlagReadResponse | FlagPayload
	readRespFirst = readResp | FlagFirst | FlagAETH
	readRespMid   = readResp | FlagMiddle
	readRespLast  = readResp | FlagLast | FlagAETH
	readRespOnly  = readResp | FlagOnly | FlagAETH
	ack           = FlagResponse | FlagAck | FlagOnly | FlagAETH
	srdFlags      = FlagDETH | FlagSRDETH
	flowRequest   = srdFlags | FlagRequest | FlagFlow | FlagOnly
	flowResponse  = srdFlags | FlagResponse | FlagFlow | FlagOnly
	atomicAck     = FlagResponse | FlagAtomicAck | FlagOnly | FlagAETH | FlagAtomicAckETH
)

// opcodes is table 38 of the specification. Only XRC requests have an XRCETH. XRC responses are equal to RC responses.
var opcodes = [256]opcodeInfo{
	RCSendFirst:                  {sendFirst, layNone},
	RCSendMiddle:                 {sendMid, layNone},
	RCSendLast:                   {sendLast, layNone},
	RCSendLastWithImmediate:      {sendLast | FlagImmDt, layImm},
	RCSendOnly:                   {sendOnly, layNone},
	RCSendOnlyWithImmediate:      {sendOnly | FlagImmDt, layImm},
	RCRDMAWriteFirst:             {writeFirst, layRETH},
	RCRDMAWriteMiddle:            {writeMid, layNone},
	RCRDMAWriteLast:              {writeLast, layNone},
	RCRDMAWriteLastWithImmediate: {writeLastImm, layImm},
	RCRDMAWriteOnly:              {writeOnly, layRETH},
	RCRDMAWriteOnlyWithImmediate: {writeOnlyImm, layRETHImm},
	RCRDMAReadRequest:            {readReq, layRETH},
	RCRDMAReadResponseFirst:      {readRespFirst, layAETH},
	RCRDMAReadResponseMiddle:     {readRespMid, layNone},
	RCRDMAReadResponseLast:       {readRespLast, layAETH},
	RCRDMAReadResponseOnly:       {readRespOnly, layAETH},
	RCAcknowledge:                {ack, layAETH},
	RCAtomicAcknowledge:          {atomicAck, layAtomicAck},
	RCCmpSwap:                    {atomic, layAtomic},
	RCFetchAdd:                   {atomic, layAtomic},
	RCSendLastWithInvalidate:     {sendLast | FlagIETH, layInv},
	RCSendOnlyWithInvalidate:     {sendOnly | FlagIETH, layInv},
	RCFlush:                      {flush, layFlush},
	RCAtomicWrite:                {atomicWrite, layRETH},

	UCSendFirst:                  {sendFirst, layNone},
	UCSendMiddle:                 {sendMid, layNone},
	UCSendLast:                   {sendLast, layNone},
	UCSendLastWithImmediate:      {sendLast | FlagImmDt, layImm},
	UCSendOnly:                   {sendOnly, layNone},
	UCSendOnlyWithImmediate:      {sendOnly | FlagImmDt, layImm},
	UCRDMAWriteFirst:             {writeFirst, layRETH},
	UCRDMAWriteMiddle:            {writeMid, layNone},
	UCRDMAWriteLast:              {writeLast, layNone},
	UCRDMAWriteLastWithImmediate: {writeLastImm, layImm},
	UCRDMAWriteOnly:              {writeOnly, layRETH},
	UCRDMAWriteOnlyWithImmediate: {writeOnlyImm, layRETHImm},

	UDSendOnly:              {sendOnly | FlagDETH, layDETH},
	UDSendOnlyWithImmediate: {sendOnly | FlagDETH | FlagImmDt, layDETHImm},

	CNP: {0, layCNP},

	XRCSendFirst:                  {sendFirst | FlagXRCETH, layXRC},
	XRCSendMiddle:                 {sendMid | FlagXRCETH, layXRC},
	XRCSendLast:                   {sendLast | FlagXRCETH, layXRC},
	XRCSendLastWithImmediate:      {sendLast | FlagImmDt | FlagXRCETH, layXRCImm},
	XRCSendOnly:                   {sendOnly | FlagXRCETH, layXRC},
	XRCSendOnlyWithImmediate:      {sendOnly | FlagImmDt | FlagXRCETH, layXRCImm},
	XRCRDMAWriteFirst:             {writeFirst | FlagXRCETH, layXRCRETH},
	XRCRDMAWriteMiddle:            {writeMid | FlagXRCETH, layXRC},
	XRCRDMAWriteLast:              {writeLast | FlagXRCETH, layXRC},
	XRCRDMAWriteLastWithImmediate: {writeLastImm | FlagXRCETH, layXRCImm},
	XRCRDMAWriteOnly:              {writeOnly | FlagXRCETH, layXRCRETH},
	XRCRDMAWriteOnlyWithImmediate: {writeOnlyImm | FlagXRCETH, layXRCRETHImm},
	XRCRDMAReadRequest:            {readReq | FlagXRCETH, layXRCRETH},
	XRCRDMAReadResponseFirst:      {readRespFirst, layAETH},
	XRCRDMAReadResponseMiddle:     {readRespMid, layNone},
	XRCRDMAReadResponseLast:       {readRespLast, layAETH},
	XRCRDMAReadResponseOnly:       {readRespOnly, layAETH},
	XRCAcknowledge:                {ack, layAETH},
	XRCAtomicAcknowledge:          {atomicAck, layAtomicAck},
	XRCCmpSwap:                    {atomic | FlagXRCETH, layXRCAtomic},
	XRCFetchAdd:                   {atomic | FlagXRCETH, layXRCAtomic},
	XRCSendLastWithInvalidate:     {sendLast | FlagIETH | FlagXRCETH, layXRCInv},
	XRCSendOnlyWithInvalidate:     {sendOnly | FlagIETH | FlagXRCETH, layXRCInv},
	XRCFlush:                      {flush | FlagXRCETH, layXRCFlush},
	XRCAtomicWrite:                {atomicWrite | FlagXRCETH, layXRCRETH},

	SRDSendOnly:                   {sendOnly | srdFlags, laySRD},
	SRDSendOnlyWithImmediate:      {sendOnly | srdFlags | FlagImmDt, laySRDImm},
	SRDRDMAWriteOnly:              {writeOnly | srdFlags, laySRDRETH},
	SRDRDMAWriteOnlyWithImmediate: {writeOnlyImm | srdFlags, laySRDRETHImm},
	SRDRDMAReadRequest:            {readReq | srdFlags, laySRDRETH},
	SRDRDMAReadResponseOnly:       {readResp | FlagOnly | srdFlags, laySRD},
	SRDAcknowledge:                {FlagResponse | FlagAck | FlagOnly | FlagPayload | srdFlags, laySRD},
	SRDFlowOpen:                   {flowRequest, laySRD},
	SRDFlowAccept:                 {flowResponse, laySRD},
	SRDFlowRefuse:                 {flowResponse, laySRD},
	SRDFlowSkip:                   {flowRequest, laySRD},
}
