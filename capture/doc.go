// Package capture records the packets of devices in a pcapng file, like a capture on a wire.
//
// A [Recorder] writes one file. Each device is an interface of the file, and [Recorder.Interface] returns its
// [link.Tap]. The tap copies packets into a buffer of limited size. A goroutine converts the packets to frames and
// writes the frames:
//
//	data path --> Tap --> filter --> buffer (32 MiB) ===> goroutine: sort, frame, pcapng --> writer
//	                                    |
//	                                    +--> full: counted as dropped
//
// A slow or blocked writer thus loses packets of the file, but never blocks the devices.
//
// Frames are raw IP (LINKTYPE_RAW), because a user-space device has no headers below IP. The recorder fills in the
// fields that a device leaves to the host's IP stack. The package also adds the ICRC to packets that stayed within
// one service and had none. The file has the direction of each packet (epb_flags) and timestamps in nanoseconds. At
// its end, the file has the numbers of received and dropped packets of each interface (interface statistics block).
//
// [ParseFilter] parses the filter language.
package capture
