package main

import (
	"fmt"
	"os"
	"os/user"
	"strconv"

	"verbena/supervisor"
)

// nodeFlags sets the owner and mode of the device files, like OWNER, GROUP and MODE of a udev rule.
type nodeFlags struct {
	Owner string `help:"Owner of the device files and of the control socket; name or number." placeholder:"USER" complete:"user"`
	Group string `help:"Group of the device files and of the control socket." placeholder:"GROUP" complete:"group"`
	Mode  string `help:"Permission bits of the device files and of the control socket. Every user with write access may run programs on this service, also as another user if root runs the service. Default: 0660 with --group, 0600 with --owner; without any of the three flags, only programs of this user." placeholder:"OCTAL" complete:"none"`
}

// nodeFromFlags returns the owner and mode that the flags give, or nil without flags.
func (f *nodeFlags) nodeFromFlags() (*supervisor.Node, error) {
	if f.Owner == "" && f.Group == "" && f.Mode == "" {
		return nil, nil
	}
	n := &supervisor.Node{UID: os.Geteuid(), GID: os.Getegid(), Mode: 0o600}
	var err error
	if f.Owner != "" {
		if n.UID, err = lookupUser("owner", f.Owner); err != nil {
			return nil, err
		}
	}
	if f.Group != "" {
		n.Mode = 0o660
		if n.GID, err = parseOrLookupID("group", f.Group, func(s string) (string, error) {
			g, err := user.LookupGroup(s)
			if err != nil {
				return "", err
			}
			return g.Gid, nil
		}); err != nil {
			return nil, err
		}
	}
	if f.Mode != "" {
		mode, err := strconv.ParseUint(f.Mode, 8, 32)
		if err != nil || mode&^0o666 != 0 || mode == 0 {
			return nil, fmt.Errorf("--mode %s: permission bits are an octal number of at most 0666, such as 0660", f.Mode)
		}
		n.Mode = uint32(mode)
	}
	return n, nil
}

// lookupUser finds a user by name or number. The errors of lookupUser name flag.
func lookupUser(flag, name string) (int, error) {
	return parseOrLookupID(flag, name, func(s string) (string, error) {
		u, err := user.Lookup(s)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
}

func parseOrLookupID(what, name string, byName func(string) (string, error)) (int, error) {
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	id, err := byName(name)
	if err != nil {
		return 0, fmt.Errorf("--%s %s: %w", what, name, err)
	}
	return strconv.Atoi(id)
}
