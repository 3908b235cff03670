package engine

import (
	"fmt"
	"syscall"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/roce"
)

// gidTableLen is the length of the GID table, nearly all of it empty (RXE_PORT_GID_TBL_LEN).
const gidTableLen = 1024

// newGIDTable returns the GID table of the port.
func newGIDTable(t *queue.Traits) *ib.GIDTable {
	if t.AddressGIDs {
		return ib.NewAddressGIDTable()
	}
	return ib.NewGIDTable(gidTableLen)
}

// GIDTable implements ib.GIDDriver.
func (o ops) GIDTable(port int) *ib.GIDTable {
	d := o.dev
	if port != 1 {
		return nil
	}
	return d.gids
}

// QueryGID implements ib.Driver.
func (o ops) QueryGID(port, index int) (ib.GIDEntry, error) {
	d := o.dev
	if port != 1 {
		return ib.GIDEntry{}, fmt.Errorf("gid %d: no port %d: %w", index, port, syscall.EINVAL)
	}
	return d.gids.Query(index)
}

// QueryPKey implements ib.Driver: RoCE has one partition.
func (o ops) QueryPKey(port, index int) (uint16, error) {
	if port != 1 || index != 0 {
		return 0, fmt.Errorf("pkey %d of port %d: no such entry: %w", index, port, syscall.EINVAL)
	}
	return roce.DefaultPKey, nil
}
