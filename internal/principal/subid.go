package principal

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"verbena/internal/procfile"
)

// subordinateIDs finds the owner of a subordinate user ID (subuid(5)). A user can run programs with such an ID
// outside of any user namespace, because the owner of a set-uid file made within a user namespace has such an ID.
type subordinateIDs struct {
	files [2]string // paths of subuid(5) and passwd(5)

	mu     sync.Mutex
	read   [2]fs.FileInfo // state of the files when they were last read; nil for a missing file
	ranges []idRange
	users  map[int]bool // user IDs in passwd(5)
}

// idRange is a range of IDs that begins with first.
type idRange struct {
	first, count uint64
	owner        int
}

func newSubordinateIDs(subuid, passwd string) *subordinateIDs {
	s := &subordinateIDs{files: [2]string{subuid, passwd}}
	for i, f := range s.files {
		if to, err := filepath.EvalSymlinks(f); err == nil {
			s.files[i] = to // because procfile does not follow links
		}
	}
	return s
}

// ownerOf returns the owner of a user ID. An ID in passwd(5), an unassigned ID, and an ID of root belong to
// themselves, since root can give its IDs to any container. If two users have the ID, the first user in the file
// owns it.
func (s *subordinateIDs) ownerOf(uid int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reloadFiles()
	if s.users[uid] {
		return uid
	}
	for _, r := range s.ranges {
		if n := uint64(uid); uid >= 0 && n >= r.first && n-r.first < r.count {
			if r.owner == 0 {
				return uid
			}
			return r.owner
		}
	}
	return uid
}

// reloadFiles reads the files if they have changed.
//
//verbena:held mu
func (s *subordinateIDs) reloadFiles() {
	changed := false
	for i, f := range s.files {
		info, err := os.Stat(f)
		if err != nil {
			info = nil
		}
		if !isSameFileVersion(info, s.read[i]) {
			s.read[i], changed = info, true
		}
	}
	if !changed {
		return
	}
	subuid, _ := procfile.ReadNoFollow(s.files[0]) // without the file there are no subordinate IDs
	passwd, _ := procfile.ReadNoFollow(s.files[1])
	s.ranges, s.users = parseSubordinateIDs(subuid, passwd)
}

func isSameFileVersion(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// parseSubordinateIDs parses subuid(5), and takes user IDs from passwd(5). A line has the form USER:FIRST:COUNT,
// where USER is a name or a number. parseSubordinateIDs ignores invalid lines.
func parseSubordinateIDs(subuid, passwd []byte) (ranges []idRange, users map[int]bool) {
	users = map[int]bool{}
	byName := map[string]int{}
	for line := range bytes.Lines(passwd) {
		if f := strings.Split(string(line), ":"); len(f) >= 3 {
			if uid, err := strconv.ParseUint(f[2], 10, 32); err == nil {
				byName[f[0]], users[int(uid)] = int(uid), true
			}
		}
	}
	for line := range bytes.Lines(subuid) {
		f := strings.Split(strings.TrimSpace(string(line)), ":")
		if len(f) != 3 {
			continue
		}
		owner, ok := byName[f[0]]
		if !ok {
			uid, err := strconv.ParseUint(f[0], 10, 32)
			if err != nil {
				continue
			}
			owner = int(uid)
		}
		first, err1 := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		if err1 == nil && err2 == nil {
			ranges = append(ranges, idRange{first, count, owner})
		}
	}
	return ranges, users
}
