package rxe

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/roce"
)

// gidTableLen is the length of the GID table, nearly all of it empty (RXE_PORT_GID_TBL_LEN).
const gidTableLen = 1024

// QueryGID implements ib.Driver.
func (d *Device) QueryGID(port, index int) (ib.GIDEntry, error) {
	if port != 1 || index < 0 || index >= gidTableLen {
		return ib.GIDEntry{}, fmt.Errorf("gid %d of port %d: no such entry: %w", index, port, syscall.EINVAL)
	}
	if gids := d.at.Load().gids; index < len(gids) {
		return gids[index], nil
	}
	return ib.GIDEntry{}, nil
}

// QueryPKey implements ib.Driver: RoCE has one partition.
func (d *Device) QueryPKey(port, index int) (uint16, error) {
	if port != 1 || index != 0 {
		return 0, fmt.Errorf("pkey %d of port %d: no such entry: %w", index, port, syscall.EINVAL)
	}
	return roce.DefaultPKey, nil
}
