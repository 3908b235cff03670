package engine

import (
	"cmp"
	"sync"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/umem"
)

// grant is what a key stands for: rights to a range of registered memory. It does not change: whatever changes a
// region or a window puts another grant, or none, behind the key, and revokes the one before.
//
//	region of RegMR     granted by RegMR, Rereg    until Rereg, Dereg
//	region of AllocMR   granted by WRRegMR         until invalidated, Dereg
//	window              granted by WRBindMW        until bound anew, unbound, invalidated, Dealloc
type grant struct {
	key    uint32 // local and remote
	pd     *pd
	region *umem.Region
	access ib.AccessFlags
	first  uint64 // the range, as who has the key names it
	length uint64
	shift  uint64 // from there to the region's addresses
	mr     *mr    // whose memory it is
	qp     *QP    // the only one whose peer may use it; nil: any of the domain

	// inUse is held for reading during an access; for writing, and for ever, by revoke. Who begins an access does not
	// wait.
	//verbena:program who ends the access to memory, or takes the key away, on behalf of the program whose memory it is
	inUse sync.RWMutex
}

// cover makes a grant of a whole region.
func (m *mr) cover(key uint32, r *umem.Region, access ib.AccessFlags) *grant {
	return &grant{
		key: key, pd: m.pd, region: r, access: access | localRead, first: r.IOVA(), length: r.Len(), mr: m,
	}
}

// revoke returns when no access is in flight, and lets no other begin. The caller has taken the grant from behind its
// key, and its pass has no access of its own in flight. An access is a critical section of a lock like any other, so this
// may be called where one may not sleep.
func (g *grant) revoke() {
	if !g.inUse.TryLock() && !g.mr.dev.broken.Load() {
		g.inUse.Lock() //verbena:allow nosleep an access waits for nothing but the memory that it is to
	}
}

// keyGenerations gives the low eight bits of the next key with an index.
type keyGenerations struct {
	mu     sync.Mutex
	chunks map[uint32]*[1 << chunkBits]uint16 // 256 and the last generation; 0: the index was never used
}

// last is the place of the last generation with an index.
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

// used notes the last key with an index, whose low bits a consumer may have chosen.
func (k *keyGenerations) used(key uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	*k.last(key >> 8) = 256 | uint16(uint8(key))
}

const (
	remoteAccess = ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic
	// localRead is the right to read by a local key: every region gives it, and no window.
	localRead ib.AccessFlags = 1 << 31

	// Keys below firstMW<<8 are of regions, the others of windows.
	firstMWBits = 19
	firstMW     = 1 << firstMWBits // one more than RXE_MAX_MR
	maxMW       = tableMax - firstMW
)

// keyIndexBits returns the number of bits of a key above its generation.
func keyIndexBits(t *queue.Traits) uint { return cmp.Or(t.KeyBits, 32) - 8 }
