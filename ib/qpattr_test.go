package ib

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"syscall"
	"testing"
)

// TestQPAttrSetCopiesMaskedFields checks that each attribute is copied for exactly one bit of the mask. Attributes of
// the state and the capacities are exceptions.
func TestQPAttrSetCopiesMaskedFields(t *testing.T) {
	var from QPAttr
	v := reflect.ValueOf(&from).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Struct: // AHAttr and QPCap
			for j := range f.NumField() {
				if f.Field(j).CanUint() {
					f.Field(j).SetUint(1)
				}
			}
		default:
			f.SetUint(1)
		}
	}
	stored := map[string]int{}
	for bit := QPAttrMask(1); bit != 0; bit <<= 1 {
		var to QPAttr
		to.Set(&from, bit)
		got := reflect.ValueOf(to)
		for i := range got.NumField() {
			if name := got.Type().Field(i).Name; !got.Field(i).IsZero() {
				stored[name]++
				if !reflect.DeepEqual(got.Field(i).Interface(), v.Field(i).Interface()) {
					t.Errorf("mask %#x, %s: got %v, want %v", uint32(bit), name, got.Field(i), v.Field(i))
				}
			}
		}
	}
	for i := range v.NumField() {
		name, want := v.Type().Field(i).Name, 1
		if slices.Contains([]string{"State", "CurState", "Cap", "RateLimit", "SQDraining"}, name) {
			want = 0
		}
		if stored[name] != want {
			t.Errorf("Set: got %s copied for %d bits of the mask, want %d", name, stored[name], want)
		}
	}
}

// TestQPAttrFitsChecksLargestValue checks that the largest value of a field fits, and that the next larger value does
// not. The test also checks that Fits ignores attributes that are not in the mask.
func TestQPAttrFitsChecksLargestValue(t *testing.T) {
	for _, tt := range []struct {
		bit  QPAttrMask
		most uint32
		set  func(*QPAttr, uint32)
	}{
		{QPAttrDestQPN, 1<<24 - 1, func(a *QPAttr, v uint32) { a.DestQPN = v }},
		{QPAttrRQPSN, 1<<24 - 1, func(a *QPAttr, v uint32) { a.RQPSN = v }},
		{QPAttrSQPSN, 1<<24 - 1, func(a *QPAttr, v uint32) { a.SQPSN = v }},
		{QPAttrTimeout, 31, func(a *QPAttr, v uint32) { a.Timeout = uint8(v) }},
		{QPAttrMinRNRTimer, 31, func(a *QPAttr, v uint32) { a.MinRNRTimer = uint8(v) }},
		{QPAttrAltPath, 31, func(a *QPAttr, v uint32) { a.AltTimeout = uint8(v) }},
		{QPAttrRetryCnt, 7, func(a *QPAttr, v uint32) { a.RetryCnt = uint8(v) }},
		{QPAttrRNRRetry, 7, func(a *QPAttr, v uint32) { a.RNRRetry = uint8(v) }},
		{QPAttrPathMTU, uint32(MTU4096), func(a *QPAttr, v uint32) { a.PathMTU = MTU(v) }},
	} {
		for _, v := range []uint32{tt.most, tt.most + 1, math.MaxUint32} {
			var a QPAttr
			tt.set(&a, v)
			if err := a.Fits(tt.bit); (v == tt.most) != (err == nil) || err != nil && !errors.Is(err, syscall.EINVAL) {
				t.Errorf("mask %#x, value %d: got %v", uint32(tt.bit), v, err)
			}
			if err := a.Fits(math.MaxUint32 &^ tt.bit &^ QPAttrPathMTU); err != nil {
				t.Errorf("Fits without mask bit %#x, value %d: got %v, want nil", uint32(tt.bit), v, err)
			}
		}
	}
}
