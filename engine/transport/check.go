package transport

// Check is one of the checks that a request has to pass, in the order in which a responder makes them (IBA 9.7.4.1).
// The first that fails decides what the requester hears.
type Check uint8

const (
	CheckPSN       Check = iota // it is the expected one (9.7.4.1.1)
	CheckSequence               // the opcode may follow the one before it (9.7.4.1.2)
	CheckOpcode                 // the queue pair carries out such requests (9.7.4.1.3)
	CheckResources              // there is a receive, or room for one more answer (9.7.4.1.4)
	CheckRKey                   // the key gives the right to the range (9.7.4.1.5)
	CheckLength                 // the lengths fit the path MTU, the message and the receive (9.7.4.1.6)
	CheckLocal                  // it can be carried out (9.7.4.1.7)
)

var checkNames = [...]string{
	CheckPSN: "PSN", CheckSequence: "opcode sequence", CheckOpcode: "opcode", CheckResources: "resources", CheckRKey: "R_Key",
	CheckLength: "length", CheckLocal: "local operation",
}

func (c Check) String() string { return checkNames[c] }
