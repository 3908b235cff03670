package model

import (
	"encoding/binary"
	"hash/maphash"
	"reflect"
)

// A search among the orders of concurrent calls visits equal states many times. It compares them by a hash.

var hashSeed = maphash.MakeSeed()

// Fingerprint returns a hash of the state. Different states have different hashes, except with a probability of 2^-64.
func (m *Model) Fingerprint() uint64 {
	f := stateHasher{}
	f.h.SetSeed(hashSeed)
	for _, v := range []any{
		m.Device.Dead, m.Mem.history, m.Queues.Groups, m.Queues.QPs, m.Completions.CQs, m.Queues.SRQs,
		m.Keys.Regions, m.Keys.Windows, m.AHs,
	} {
		f.addValue(reflect.ValueOf(v))
	}
	return f.h.Sum64()
}

// stateHasher adds values to a hash.
type stateHasher struct{ h maphash.Hash }

var modelPkgPath = reflect.TypeFor[Model]().PkgPath()

// addValue adds a value with all fields and elements, and with the objects of this package that it points to.
func (f *stateHasher) addValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		n := uint64(0)
		if v.Bool() {
			n = 1
		}
		f.addUint64(n)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		f.addUint64(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		f.addUint64(v.Uint())
	case reflect.String:
		f.addUint64(uint64(v.Len()))
		f.h.WriteString(v.String())
	case reflect.Struct:
		for i := range v.NumField() {
			f.addValue(v.Field(i))
		}
	case reflect.Slice:
		f.addUint64(uint64(v.Len()))
		if v.Type().Elem().Kind() == reflect.Uint8 {
			f.h.Write(v.Bytes())
			return
		}
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			f.addValue(v.Index(i))
		}
	case reflect.Map:
		f.addMap(v)
	case reflect.Pointer:
		if !v.IsNil() && v.Type().Elem().PkgPath() == modelPkgPath {
			f.addUint64(1)
			f.addValue(v.Elem())
			return
		}
		f.addUint64(uint64(v.Pointer()))
	case reflect.Interface:
		f.addValue(v.Elem())
	case reflect.Invalid:
		f.addUint64(0)
	default:
		panic("model: no fingerprint of " + v.Type().String())
	}
}

// addMap adds the pairs of a map, whose order has no effect.
func (f *stateHasher) addMap(v reflect.Value) {
	sum := uint64(0)
	for i := v.MapRange(); i.Next(); {
		p := stateHasher{}
		p.h.SetSeed(hashSeed)
		p.addValue(i.Key())
		p.addValue(i.Value())
		sum += p.h.Sum64()
	}
	f.addUint64(uint64(v.Len()))
	f.addUint64(sum)
}

func (f *stateHasher) addUint64(n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	f.h.Write(b[:])
}
