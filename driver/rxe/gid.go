package rxe

import (
	"fmt"
	"net/netip"
	"syscall"

	"verbena/ib"
	"verbena/roce"
)

// gidTableLen is the length of the GID table, nearly all of it empty (RXE_PORT_GID_TBL_LEN).
const gidTableLen = 1024

// makeGIDs fills the GID table as ib_core does for RoCE: the default GID, which derives from the MAC address,
// then one entry for each address.
func makeGIDs(defaultGID ib.GID, addrs []netip.Addr, netdev string, index int) []ib.GIDEntry {
	entry := func(g ib.GID) ib.GIDEntry {
		return ib.GIDEntry{GID: g, Type: ib.GIDTypeRoCEv2, Netdev: netdev, IfIndex: index}
	}
	gids := []ib.GIDEntry{entry(defaultGID)}
	for _, v4 := range []bool{true, false} {
		for _, a := range addrs {
			if g := ib.GIDFromAddr(a); a.Is4() == v4 && g != defaultGID && len(gids) < gidTableLen {
				gids = append(gids, entry(g))
			}
		}
	}
	return gids
}

// QueryGID implements ib.Driver.
func (d *Device) QueryGID(port, index int) (ib.GIDEntry, error) {
	if port != 1 || index < 0 || index >= gidTableLen {
		return ib.GIDEntry{}, fmt.Errorf("gid %d of port %d: no such entry: %w", index, port, syscall.EINVAL)
	}
	if index >= len(d.gids) {
		return ib.GIDEntry{}, nil
	}
	return d.gids[index], nil
}

// QueryPKey implements ib.Driver: RoCE has one partition.
func (d *Device) QueryPKey(port, index int) (uint16, error) {
	if port != 1 || index != 0 {
		return 0, fmt.Errorf("pkey %d of port %d: no such entry: %w", index, port, syscall.EINVAL)
	}
	return roce.DefaultPKey, nil
}
