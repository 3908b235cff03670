// Package capture records the packets of devices in a pcapng file, as if they had been captured on a wire.
//
// A [Recorder] writes one file. Each device is an interface of it, and [Recorder.Interface] is the [wire.Tap] to put on
// the device. What a tap sees is copied into a bounded buffer; a goroutine makes frames of it and writes them:
//
//	data path --> Tap --> filter --> buffer (32 MiB) ===> goroutine: sort, frame, pcapng --> writer
//	                                    |
//	                                    +--> full: counted as dropped
//
// So a writer that is slow, or stands still, costs packets in the file but never holds up the devices.
//
// Frames are raw IP (LINKTYPE_RAW): what this user-space device knows of a packet ends there. The fields that a device
// leaves to the host's IP stack are filled in as it would; packets that took the shortcut within one service get their
// ICRC here. The file has the direction of each packet (epb_flags), times in nanoseconds, and at its end for each
// interface how many packets it got and how many of them were dropped (interface statistics block).
//
// [ParseFilter] reads the small language that selects packets.
package capture
