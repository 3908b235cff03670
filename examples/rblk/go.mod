module verbena/examples/rblk

go 1.26.0

replace verbena => ../..

require (
	github.com/alecthomas/kong v1.17.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.23.0
	golang.org/x/sys v0.49.0
	verbena v0.0.0-00010101000000-000000000000
)
