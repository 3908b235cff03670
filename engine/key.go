package engine

import (
	"cmp"
	"sync"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/umem"
)

// grant holds the rights of a key to a range of registered memory. It does not change: a change of a region or a
// window stores new rights, or none, under the key, and revokes the old rights.
//
//	region of RegMR     granted by RegMR, Rereg    until Rereg, Dereg
//	region of AllocMR   granted by WRRegMR         until invalidated, Dereg
//	window              granted by WRBindMW        until bound anew, unbound, invalidated, Dealloc
type grant struct {
	key    uint32 // local and remote
	pd     *pd
	region *umem.Region
	access ib.AccessFlags
	first  uint64 // start of the range, in the addresses that requests with the key use
	length uint64
	shift  uint64 // offset from these addresses to those of the region
	mr     *mr    // region that has the memory
	qp     *QP    // only the peer of qp may use the key; nil: all peers of the domain

	// inUse is held for reading during an access. revoke takes it for writing and never releases it. The begin of an
	// access does not wait.
	//verbena:program the holder accesses memory, or revokes the key, on behalf of the program that has the memory
	inUse sync.RWMutex
}

// cover returns the rights of a key to a whole region.
func (m *mr) cover(key uint32, r *umem.Region, access ib.AccessFlags) *grant {
	return &grant{
		key: key, pd: m.pd, region: r, access: access | localRead, first: r.IOVA(), length: r.Len(), mr: m,
	}
}

// revoke waits until no access is in flight, and prevents further accesses. The caller has replaced the rights of the
// key, and its pass has no access of its own in flight. An access is a critical section like that of any other lock,
// so revoke may be called from contexts that may not sleep.
func (g *grant) revoke() {
	if !g.inUse.TryLock() && !g.mr.dev.broken.Load() {
		g.inUse.Lock() //verbena:allow nosleep an access waits only for the memory that it accesses
	}
}

// keyGenerations assigns the low eight bits of the next key with an index.
type keyGenerations struct {
	mu     sync.Mutex
	chunks map[uint32]*[1 << chunkBits]uint16 // 256 plus the last generation; 0: the index was never used
}

// last returns the location of the last generation with an index.
//
//verbena:held mu
func (k *keyGenerations) last(index uint32) *uint16 {
	if k.chunks == nil {
		k.chunks = map[uint32]*[1 << chunkBits]uint16{}
	}
	c := k.chunks[index>>chunkBits]
	if c == nil {
		c = new([1 << chunkBits]uint16)
		k.chunks[index>>chunkBits] = c
	}
	return &c[index&(1<<chunkBits-1)]
}

func (k *keyGenerations) take(index uint32, seed uint8) uint8 {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := k.last(index)
	g := uint8(*last) + 1
	if *last == 0 {
		g = seed
	}
	*last = 256 | uint16(g)
	return g
}

// used records the last key with an index. A consumer may have chosen the low bits of the key.
func (k *keyGenerations) used(key uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	*k.last(key >> 8) = 256 | uint16(uint8(key))
}

const (
	remoteAccess = ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic
	// localRead is the right to read by a local key. Every region has this right, and no window has it.
	localRead ib.AccessFlags = 1 << 31

	// Keys below firstMW<<8 belong to regions, and the others to windows.
	firstMWBits = 19
	firstMW     = 1 << firstMWBits // one more than RXE_MAX_MR
	maxMW       = tableMax - firstMW
)

// keyIndexBits returns the number of bits of a key above its generation.
func keyIndexBits(t *queue.Traits) uint { return cmp.Or(t.KeyBits, 32) - 8 }
