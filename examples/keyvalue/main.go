// Command keyvalue looks up keys in the table of a peer by RDMA READ. The owner of the table executes no code for a
// look-up. Both ends are in this process; on a network the table would belong to another program.
//
//	go run ./examples/keyvalue
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log"

	"verbena/verbs"
	"verbena/verbs/embed"
)

// The table uses open addressing: a key is in the slot of its hash, or in one of the following slots. An empty slot
// has an empty key.
const (
	slots     = 64
	slotSize  = 64
	keySize   = 24
	valueSize = slotSize - keySize - 2
)

var errNotFound = errors.New("no such key")

func hashKey(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % slots)
}

// putKey inserts a new key of at most keySize bytes. Only the owner of the table calls putKey.
func putKey(table []byte, key, value string) error {
	if key == "" || len(key) > keySize || len(value) > valueSize {
		return fmt.Errorf("put %q: key must have 1 to %d bytes, and value at most %d bytes", key, keySize, valueSize)
	}
	for i := range slots {
		s := table[(hashKey(key)+i)%slots*slotSize:][:slotSize]
		if s[0] == 0 {
			copy(s, key)
			binary.BigEndian.PutUint16(s[keySize:], uint16(len(value)))
			copy(s[keySize+2:], value)
			return nil
		}
	}
	return errors.New("put: the table is full")
}

// tableReader looks up keys by RDMA READ.
type tableReader struct {
	qp    *verbs.QP
	cq    *verbs.CQ
	slot  *verbs.MR
	table verbs.Remote
}

// get returns the value of a key, or errNotFound. get sleeps until each READ has completed.
func (r *tableReader) get(ctx context.Context, key string) (string, error) {
	var wc [1]verbs.WC
	for i := range slots {
		from := r.table
		from.Addr += uint64((hashKey(key) + i) % slots * slotSize)
		err := r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Read, Flags: verbs.Signaled, Local: r.slot.SGE(0, slotSize),
			Remote: from})
		if err != nil {
			return "", err
		}
		if _, err := r.cq.Wait(ctx, wc[:]); err != nil {
			return "", err
		}
		if err := verbs.CompletionError(&wc[0]); err != nil {
			return "", err
		}
		s := r.slot.Bytes()
		if s[0] == 0 {
			break
		}
		if string(s[:len(key)]) == key && (len(key) == keySize || s[len(key)] == 0) {
			n := binary.BigEndian.Uint16(s[keySize:])
			return string(s[keySize+2:][:n]), nil
		}
	}
	return "", errNotFound
}

// run looks up keys in a table of the squares of the numbers below 40.
func run(ctx context.Context, keys ...string) (values []string, err error) {
	stack, err := embed.NewSoftware()
	if err != nil {
		return nil, err
	}
	defer stack.Close()
	dev, err := stack.Open("")
	if err != nil {
		return nil, err
	}
	defer dev.Close() // Close also destroys all objects of the device
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	table, err := pd.Alloc(slots*slotSize, verbs.LocalWrite|verbs.RemoteRead)
	if err != nil {
		return nil, err
	}
	for i := range 40 {
		if err := putKey(table.Bytes(), fmt.Sprint(i), fmt.Sprint(i*i)); err != nil {
			return nil, err
		}
	}
	r := &tableReader{table: table.Remote(0)}
	if r.cq, err = dev.CreateCQ(16, nil); err != nil {
		return nil, err
	}
	if r.slot, err = pd.Alloc(slotSize, verbs.LocalWrite); err != nil {
		return nil, err
	}
	if r.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: r.cq}); err != nil {
		return nil, err
	}
	owner, err := pd.CreateQP(verbs.QPInit{SendCQ: r.cq})
	if err != nil {
		return nil, err
	}
	if err := verbs.ConnectPair(r.qp, owner); err != nil {
		return nil, err
	}
	for _, k := range keys {
		v, err := r.get(ctx, k)
		if err != nil {
			return nil, fmt.Errorf("get %s: %w", k, err)
		}
		values = append(values, v)
	}
	return values, nil
}

func main() {
	values, err := run(context.Background(), "7", "11", "39")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(values)
}
