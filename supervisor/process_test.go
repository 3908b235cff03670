package supervisor

import (
	"os"
	"reflect"
	"testing"
)

func TestParseStatus(t *testing.T) {
	const text = "Name:\tib send\\nlat\nUmask:\t0022\nTgid:\t4711\nPid:\t4712\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapEff:\t0000000000000002\n"
	got, err := parseStatus([]byte(text))
	want := &identity{pid: 4711, name: `ib send\nlat`, uids: idSet{1, 2, 3, 4}, gids: idSet{5, 6, 7, 8}, groups: []int{9,
		10},
		fileCapability: true}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("parseStatus: got %+v and error %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"", "Tgid:\n", "Tgid:\tx\n", "Tgid:\t1\nUid:\t1\t2\t3\n", "Tgid:\t1\nCapEff:\tx\n",
		"Tgid:\t1\nGroups:\tx\n"} {
		if id, err := parseStatus([]byte(bad)); err == nil {
			t.Errorf("parseStatus(%q): got %+v, want an error", bad, id)
		}
	}
	self, err := readIdentity(os.Getpid())
	if err != nil || self.pid != os.Getpid() || self.uids.effective != os.Geteuid() || self.gids.fs != os.Getegid() {
		t.Errorf("this process: got %+v and error %v, want its IDs", self, err)
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte("Name:\tx\nTgid:\t1\nUid:\t1\t2\t3\t4\nGroups:\t1 2\nCapEff:\tff\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if id, err := parseStatus(text); (id == nil) == (err == nil) {
			t.Errorf("parseStatus: got %+v and error %v, want either an identity or an error", id, err)
		}
	})
}

func TestNodeAllows(t *testing.T) {
	node := Node{UID: 10, GID: 20, Mode: 0o640}
	for _, tt := range []struct {
		id   identity
		uid  int
		gid  int
		want uint32 // rights
	}{
		{identity{}, 10, 1, mayRead | mayWrite},
		{identity{}, 10, 20, mayRead | mayWrite},
		{identity{}, 1, 20, mayRead},
		{identity{groups: []int{3, 20}}, 1, 1, mayRead},
		{identity{}, 1, 1, 0},
		{identity{fileCapability: true}, 1, 1, mayRead | mayWrite},
	} {
		for rights := range uint32(8) {
			if got, want := node.allows(&tt.id, tt.uid, tt.gid, rights), rights&^tt.want == 0; got != want {
				t.Errorf("allows of %+v as %d:%d: got rights %o %v, want %v", tt.id, tt.uid, tt.gid, rights, got, want)
			}
		}
	}
}

func TestHardFileLimitOf(t *testing.T) {
	got, err := hardFileLimitOf(os.Getpid())
	want, werr := hardFileLimit()
	if err != nil || werr != nil || got != want {
		t.Errorf("hardFileLimitOf: got %d and error %v, want %d and %v", got, err, want, werr)
	}
}
