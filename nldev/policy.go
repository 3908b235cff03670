package nldev

import (
	"bytes"
	"encoding/binary"
	"syscall"
)

// A attrKind is the type of an attribute in the kernel's policy table (NLA_U8 and so on).
type attrKind uint8

// The following constants are the kinds that nldev uses. kindUnspec is also the kind of an attribute without a
// policy.
const (
	kindUnspec attrKind = iota
	kindU8
	kindU32
	kindU64
	kindString // NLA_NUL_STRING
	kindNested
	kindBinary
)

// intSize returns the size of an integer in bytes, or 0 for other kinds.
func (k attrKind) intSize() int {
	switch k {
	case kindU8:
		return 1
	case kindU32:
		return 4
	case kindU64:
		return 8
	}
	return 0
}

// A attrPolicy restricts the payload of an attribute of a request.
type attrPolicy struct {
	kind attrKind
	// max is a number of bytes. For a string, it is the maximum length without the NUL, or 0 for no limit. For an
	// unspecified attribute, it is the minimum size.
	max int
}

// attrPolicies is nldev_policy.
var attrPolicies = [attrCount]attrPolicy{
	attrDevIndex:                {kind: kindU32},
	attrDevName:                 {kindString, nameSize},
	attrPortIndex:               {kind: kindU32},
	attrFWVersion:               {kindString, emptyString},
	attrNodeGUID:                {kind: kindU64},
	attrSysImageGUID:            {kind: kindU64},
	attrSubnetPrefix:            {kind: kindU64},
	attrLID:                     {kind: kindU32},
	attrSMLID:                   {kind: kindU32},
	attrLMC:                     {kind: kindU8},
	attrPortState:               {kind: kindU8},
	attrPortPhysState:           {kind: kindU8},
	attrDevNodeType:             {kind: kindU8},
	attrResSummary:              {kind: kindNested},
	attrResSummaryEntry:         {kind: kindNested},
	attrResSummaryEntryName:     {kindString, emptyString},
	attrResSummaryEntryCurr:     {kind: kindU64},
	attrResQP:                   {kind: kindNested},
	attrResQPEntry:              {kind: kindNested},
	attrResLQPN:                 {kind: kindU32},
	attrResRQPN:                 {kind: kindU32},
	attrResRQPSN:                {kind: kindU32},
	attrResSQPSN:                {kind: kindU32},
	attrResPathMigState:         {kind: kindU8},
	attrResType:                 {kind: kindU8},
	attrResState:                {kind: kindU8},
	attrResPID:                  {kind: kindU32},
	attrResKernName:             {kindString, emptyString},
	attrResCMID:                 {kind: kindNested},
	attrResCMIDEntry:            {kind: kindNested},
	attrResPS:                   {kind: kindU32},
	attrResSrcAddr:              {kindUnspec, sockaddrSize},
	attrResDstAddr:              {kindUnspec, sockaddrSize},
	attrResCQ:                   {kind: kindNested},
	attrResCQEntry:              {kind: kindNested},
	attrResCQE:                  {kind: kindU32},
	attrResUsecnt:               {kind: kindU64},
	attrResPollCTX:              {kind: kindU8},
	attrResMR:                   {kind: kindNested},
	attrResMREntry:              {kind: kindNested},
	attrResRKEY:                 {kind: kindU32},
	attrResLKEY:                 {kind: kindU32},
	attrResIOVA:                 {kind: kindU64},
	attrResMrlen:                {kind: kindU64},
	attrResPD:                   {kind: kindNested},
	attrResPDEntry:              {kind: kindNested},
	attrResLocalDMALKEY:         {kind: kindU32},
	attrResUnsafeGlobalRKEY:     {kind: kindU32},
	attrNdevIndex:               {kind: kindU32},
	attrNdevName:                {kindString, netdevSize},
	attrDriver:                  {kind: kindNested},
	attrDriverEntry:             {kind: kindNested},
	attrDriverString:            {kindString, emptyString},
	attrDriverPrintType:         {kind: kindU8},
	attrDriverS32:               {kind: kindU32},
	attrDriverU32:               {kind: kindU32},
	attrDriverS64:               {kind: kindU64},
	attrDriverU64:               {kind: kindU64},
	attrResPDN:                  {kind: kindU32},
	attrResCQN:                  {kind: kindU32},
	attrResMRN:                  {kind: kindU32},
	attrResCMIDN:                {kind: kindU32},
	attrResCTXN:                 {kind: kindU32},
	attrLinkType:                {kindString, netdevSize},
	attrSysNetnsMode:            {kind: kindU8},
	attrDevProtocol:             {kindString, emptyString},
	attrNetNSFD:                 {kind: kindU32},
	attrChardevType:             {kindString, chardevTypeSize},
	attrChardevName:             {kindString, emptyString},
	attrChardevABI:              {kind: kindU64},
	attrChardev:                 {kind: kindU64},
	attrUverbsDriverID:          {kind: kindU32},
	attrStatMode:                {kind: kindU32},
	attrStatRes:                 {kind: kindU32},
	attrStatAutoModeMask:        {kind: kindU32},
	attrStatCounter:             {kind: kindNested},
	attrStatCounterEntry:        {kind: kindNested},
	attrStatCounterID:           {kind: kindU32},
	attrStatHwcounters:          {kind: kindNested},
	attrStatHwcounterEntry:      {kind: kindNested},
	attrStatHwcounterEntryName:  {kind: kindString},
	attrStatHwcounterEntryValue: {kind: kindU64},
	attrDevDIM:                  {kind: kindU8},
	attrResRaw:                  {kind: kindBinary},
	attrResCTX:                  {kind: kindNested},
	attrResCTXEntry:             {kind: kindNested},
	attrResSRQ:                  {kind: kindNested},
	attrResSRQEntry:             {kind: kindNested},
	attrResSRQN:                 {kind: kindU32},
	attrMinRange:                {kind: kindU32},
	attrMaxRange:                {kind: kindU32},
	attrSysCopyOnFork:           {kind: kindU8},
	attrStatHwcounterIndex:      {kind: kindU32},
	attrStatHwcounterDynamic:    {kind: kindU8},
	attrSysPrivilegedQkeyMode:   {kind: kindU8},
	attrDriverDetails:           {kind: kindU8},
	attrResSubtype:              {kindString, emptyString},
	attrDevType:                 {kind: kindU8},
	attrParentName:              {kind: kindString},
	attrNameAssignType:          {kind: kindU8},
	attrEventType:               {kind: kindU8},
	attrStatOpcounterEnabled:    {kind: kindU8},
}

// check returns the errno of a payload that p rejects, or 0 if p accepts the payload. nested is the attribute's
// NLA_F_NESTED flag. Mirrors validate_nla.
func (p attrPolicy) check(payload []byte, nested, strict bool) syscall.Errno {
	if strict {
		if p.kind.intSize() != 0 && len(payload) != p.kind.intSize() || p.kind == kindUnspec ||
			nested != (p.kind == kindNested) {
			return syscall.EINVAL
		}
	}
	switch p.kind {
	case kindString:
		head := payload
		if p.max != 0 && len(head) > p.max+1 {
			head = head[:p.max+1]
		}
		if bytes.IndexByte(head, 0) < 0 {
			return syscall.EINVAL
		}
		if p.max != 0 && len(bytes.TrimSuffix(payload, []byte{0})) > p.max {
			return syscall.ERANGE
		}
	case kindNested:
		if len(payload) != 0 && len(payload) < attrSize {
			return syscall.ERANGE
		}
	case kindUnspec:
		if len(payload) < p.max {
			return syscall.ERANGE
		}
	default:
		if len(payload) < p.kind.intSize() {
			return syscall.ERANGE
		}
	}
	return 0
}

// requestAttrs holds the payloads of the attributes of a request by type, and nil for absent attributes. The payloads
// alias the request. If an attribute occurs several times, the last one counts.
type requestAttrs [attrCount][]byte

// parse fills tb from the attributes in b, after checking all of them against policies. parse mirrors
// __nla_validate_parse. With strict, it rejects unknown types and bytes after the last attribute.
func (tb *requestAttrs) parse(b []byte, strict bool) syscall.Errno {
	clear(tb[:])
	for len(b) >= attrSize {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrSize || size > len(b) {
			break
		}
		raw := binary.NativeEndian.Uint16(b[2:])
		payload := b[attrSize:size:size]
		b = b[min(align(size), len(b)):]

		typ := raw & attrTypeMask
		if typ == attrUnspec || typ >= attrCount {
			if strict {
				return syscall.EINVAL
			}
			continue
		}
		if errno := attrPolicies[typ].check(payload, raw&attrFlagNested != 0, strict); errno != 0 {
			return errno
		}
		tb[typ] = payload
	}
	if strict && len(b) > 0 {
		return syscall.EINVAL
	}
	return 0
}

// hasAll reports whether all of the attributes are present.
func (tb *requestAttrs) hasAll(types ...int) bool {
	for _, t := range types {
		if tb[t] == nil {
			return false
		}
	}
	return true
}

// getU8 returns the value of an attribute of kindU8, which must be present.
func (tb *requestAttrs) getU8(typ int) uint8 { return tb[typ][0] }

// getU32 returns the value of an attribute of kindU32, which must be present.
func (tb *requestAttrs) getU32(typ int) uint32 { return binary.NativeEndian.Uint32(tb[typ]) }

// getText returns a string attribute as stored in a buffer of size bytes: up to the first NUL, and at most size-1
// bytes. Mirrors nla_strscpy.
func (tb *requestAttrs) getText(typ, size int) string {
	b := tb[typ]
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b[:min(len(b), size-1)])
}

// align rounds a length up to the alignment of messages and attributes, 4 bytes.
func align(n int) int { return (n + 3) &^ 3 }
