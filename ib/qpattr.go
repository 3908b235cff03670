package ib

import (
	"fmt"
	"syscall"
)

// Set copies the attributes named by mask from from. Set does not copy State, CurState, Cap and RateLimit, because a
// driver changes these itself. Set is for a driver's Modify, and may not sleep.
func (a *QPAttr) Set(from *QPAttr, mask QPAttrMask) {
	copyAttrIf(mask, QPAttrEnSQDAsyncNotify, &a.EnSQDAsyncNotify, from.EnSQDAsyncNotify)
	copyAttrIf(mask, QPAttrAccessFlags, &a.AccessFlags, from.AccessFlags)
	copyAttrIf(mask, QPAttrPKeyIndex, &a.PKeyIndex, from.PKeyIndex)
	copyAttrIf(mask, QPAttrPort, &a.Port, from.Port)
	copyAttrIf(mask, QPAttrQKey, &a.QKey, from.QKey)
	copyAttrIf(mask, QPAttrAV, &a.AH, from.AH)
	copyAttrIf(mask, QPAttrPathMTU, &a.PathMTU, from.PathMTU)
	copyAttrIf(mask, QPAttrTimeout, &a.Timeout, from.Timeout)
	copyAttrIf(mask, QPAttrRetryCnt, &a.RetryCnt, from.RetryCnt)
	copyAttrIf(mask, QPAttrRNRRetry, &a.RNRRetry, from.RNRRetry)
	copyAttrIf(mask, QPAttrRQPSN, &a.RQPSN, from.RQPSN)
	copyAttrIf(mask, QPAttrMaxRdAtomic, &a.MaxRdAtomic, from.MaxRdAtomic)
	copyAttrIf(mask, QPAttrAltPath, &a.AltAH, from.AltAH)
	copyAttrIf(mask, QPAttrAltPath, &a.AltPort, from.AltPort)
	copyAttrIf(mask, QPAttrAltPath, &a.AltPKeyIndex, from.AltPKeyIndex)
	copyAttrIf(mask, QPAttrAltPath, &a.AltTimeout, from.AltTimeout)
	copyAttrIf(mask, QPAttrMinRNRTimer, &a.MinRNRTimer, from.MinRNRTimer)
	copyAttrIf(mask, QPAttrSQPSN, &a.SQPSN, from.SQPSN)
	copyAttrIf(mask, QPAttrMaxDestRdAtomic, &a.MaxDestRdAtomic, from.MaxDestRdAtomic)
	copyAttrIf(mask, QPAttrPathMigState, &a.PathMigState, from.PathMigState)
	copyAttrIf(mask, QPAttrDestQPN, &a.DestQPN, from.DestQPN)
}

func copyAttrIf[T any](mask, bit QPAttrMask, to *T, v T) {
	if mask&bit != 0 {
		*to = v
	}
}

// Fits checks the attributes named by mask and returns an error for the first invalid value. A value is invalid if it
// exceeds its field on the wire or in the specification: 24 bits for QP numbers and PSNs, 5 bits for timers, 3 bits for
// retry counts, and the defined MTUs (IBA 11.2.5.2). The error wraps EINVAL. Fits is for a driver's Modify, and may not
// sleep.
func (a *QPAttr) Fits(mask QPAttrMask) error {
	for _, f := range [...]struct {
		bit  QPAttrMask
		what string
		v    uint32
		most uint32
	}{
		{QPAttrDestQPN, "destination", a.DestQPN, 1<<24 - 1},
		{QPAttrRQPSN, "receive PSN", a.RQPSN, 1<<24 - 1},
		{QPAttrSQPSN, "send PSN", a.SQPSN, 1<<24 - 1},
		{QPAttrTimeout, "timeout", uint32(a.Timeout), 31},
		{QPAttrMinRNRTimer, "RNR timer", uint32(a.MinRNRTimer), 31},
		{QPAttrAltPath, "timeout of the alternate path", uint32(a.AltTimeout), 31},
		{QPAttrRetryCnt, "retry count", uint32(a.RetryCnt), 7},
		{QPAttrRNRRetry, "RNR retry count", uint32(a.RNRRetry), 7},
	} {
		if mask&f.bit != 0 && f.v > f.most {
			return fmt.Errorf("%s %d exceeds %d: %w", f.what, f.v, f.most, syscall.EINVAL)
		}
	}
	if mask&QPAttrPathMTU != 0 && !a.PathMTU.Valid() {
		return fmt.Errorf("invalid path MTU code %d: %w", a.PathMTU, syscall.EINVAL)
	}
	return nil
}
