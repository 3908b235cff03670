package reqnotify_file

import (
	"os"

	"verbena/ib"
)

// CQ arms itself by a file.
type CQ struct {
	ib.DriverCQ
	fd *os.File
}

func (c *CQ) ReqNotify(flags ib.NotifyFlags) (bool, error) {
	_, err := c.fd.Write([]byte{1}) // want "nosleep: .*ReqNotify.* may sleep: it calls .*os.File..Write"
	return false, err
}
