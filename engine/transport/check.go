package transport

// Check is a check of a request. The constants are in the order in which a responder makes the checks (IBA 9.7.4.1).
// The first failed check determines the NAK for the requester.
type Check uint8

const (
	CheckPSN       Check = iota // the PSN is the expected one (9.7.4.1.1)
	CheckSequence               // the opcode may follow the previous one (9.7.4.1.2)
	CheckOpcode                 // the queue pair supports the request (9.7.4.1.3)
	CheckResources              // there is a receive, or room for another response (9.7.4.1.4)
	CheckRKey                   // the key permits the access to the range (9.7.4.1.5)
	CheckLength                 // the lengths fit the path MTU, the message and the receive (9.7.4.1.6)
	CheckLocal                  // the request can be executed (9.7.4.1.7)
)

var checkNames = [...]string{
	CheckPSN: "PSN", CheckSequence: "opcode sequence", CheckOpcode: "opcode", CheckResources: "resources", CheckRKey: "R_Key",
	CheckLength: "length", CheckLocal: "local operation",
}

func (c Check) String() string { return checkNames[c] }
