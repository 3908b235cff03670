package model

import (
	"encoding/binary"
	"hash/maphash"
	"reflect"
)

// A search among the orders of concurrent calls visits equal states many times. It compares them by a hash.

var seed = maphash.MakeSeed()

// Fingerprint returns a hash of the state. Different states have different hashes, except with a probability of 2^-64.
func (m *Model) Fingerprint() uint64 {
	f := fingerprint{}
	f.h.SetSeed(seed)
	for _, v := range []any{
		m.Dead, m.Mem.history, m.Groups, m.QPs, m.CQs, m.SRQs, m.Regions, m.Windows, m.AHs,
	} {
		f.add(reflect.ValueOf(v))
	}
	return f.h.Sum64()
}

// fingerprint adds values to a hash.
type fingerprint struct{ h maphash.Hash }

var own = reflect.TypeFor[Model]().PkgPath()

// add adds a value with all fields and elements, and with the objects of this package that it points to.
func (f *fingerprint) add(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		n := uint64(0)
		if v.Bool() {
			n = 1
		}
		f.number(n)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		f.number(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		f.number(v.Uint())
	case reflect.String:
		f.number(uint64(v.Len()))
		f.h.WriteString(v.String())
	case reflect.Struct:
		for i := range v.NumField() {
			f.add(v.Field(i))
		}
	case reflect.Slice:
		f.number(uint64(v.Len()))
		if v.Type().Elem().Kind() == reflect.Uint8 {
			f.h.Write(v.Bytes())
			return
		}
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			f.add(v.Index(i))
		}
	case reflect.Map:
		f.pairs(v)
	case reflect.Pointer:
		if !v.IsNil() && v.Type().Elem().PkgPath() == own {
			f.number(1)
			f.add(v.Elem())
			return
		}
		f.number(uint64(v.Pointer()))
	case reflect.Interface:
		f.add(v.Elem())
	case reflect.Invalid:
		f.number(0)
	default:
		panic("model: no fingerprint of " + v.Type().String())
	}
}

// pairs adds the pairs of a map, whose order has no effect.
func (f *fingerprint) pairs(v reflect.Value) {
	sum := uint64(0)
	for i := v.MapRange(); i.Next(); {
		p := fingerprint{}
		p.h.SetSeed(seed)
		p.add(i.Key())
		p.add(i.Value())
		sum += p.h.Sum64()
	}
	f.number(uint64(v.Len()))
	f.number(sum)
}

func (f *fingerprint) number(n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	f.h.Write(b[:])
}
