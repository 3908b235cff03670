package rdmacm

import "verbena/ib"

// peerID identifies a number that a peer has assigned to a connection or a queue pair. The address is part of the
// key, because any host can claim a node GUID. Without the address, such a host could occupy the numbers of that
// node.
type peerID struct {
	from   ib.GID
	guid   uint64
	number uint32
}

// connectionTable holds the connections of a Manager. Manager.mu guards it.
type connectionTable struct {
	local map[uint32]*connection // by the number that this side has chosen
	// The following maps hold connections by the peer's number, and by the peer's queue pair.
	byPeer   map[peerID]*connection
	byPeerQP map[peerID]*connection
}

func newConnectionTable() connectionTable {
	return connectionTable{
		local: map[uint32]*connection{}, byPeer: map[peerID]*connection{}, byPeerQP: map[peerID]*connection{},
	}
}

// isUsed reports whether a connection has this number.
func (t *connectionTable) isUsed(number uint32) bool { return t.local[number] != nil }

// add adds a connection by its own number.
func (t *connectionTable) add(c *connection) { t.local[c.local] = c }

// addPeer adds the numbers that the peer has chosen. A connection without ownsQP may share the peer's queue pair with
// others.
func (t *connectionTable) addPeer(c *connection, ownsQP bool) {
	t.byPeer[c.peerKey(c.remote)] = c
	if ownsQP {
		t.byPeerQP[c.peerKey(c.remoteQPN)] = c
	}
}

// lookUp returns the connection of a message, or nil. The message must match both communication IDs and the address
// with which the connection began. lookUp accepts any number of the peer if none is known yet.
func (t *connectionTable) lookUp(a *agent, from ib.GID, local, remote uint32) *connection {
	c := t.local[local]
	if c == nil || c.agent != a || c.to.GRH.DGID != from || c.remote != 0 && c.remote != remote {
		return nil
	}
	return c
}

// removePeerQP removes the peer's queue pair, which may then request a new connection.
func (t *connectionTable) removePeerQP(c *connection) {
	if k := c.peerKey(c.remoteQPN); t.byPeerQP[k] == c {
		delete(t.byPeerQP, k)
	}
}

// remove removes a connection.
func (t *connectionTable) remove(c *connection) {
	if t.local[c.local] == c {
		delete(t.local, c.local)
	}
	if k := c.peerKey(c.remote); t.byPeer[k] == c {
		delete(t.byPeer, k)
	}
	t.removePeerQP(c)
}
