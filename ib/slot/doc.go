// Package slot manages the life cycle of a device: hot-plug, hot-unplug and reset, in the order required by contract
// point 6 of package ib. It corresponds to the interplay of the PCI core and a driver in Linux (struct pci_driver,
// struct pci_error_handlers).
//
//	        Plug                 Reset                       the hardware answers again
//	Empty -------> Running --------------> Recovering ---------------------------------+
//	  ^               ^                        |                                       |
//	  |               +------------------------|---------------------------------------+
//	  +------------------- Unplug -------------+   (from any state; also when recovery fails)
//
// A reset runs through these steps:
//
// 1. The fatal event is dispatched (IBV_EVENT_DEVICE_FATAL).
//  2. The hardware is reset by its driver, if it answers.
//  3. The device enters the error state: all outstanding work completes with a flush error.
//  4. The device is unregistered, with each client's ordinary shutdown; user contexts become zombies at once.
//  5. If the hardware did not answer, the driver waits until the platform has reset it, perhaps for ever.
//  6. The driver makes a new device of the hardware, which is registered.
//
// The wait of step 5 comes after the shutdown, so that nothing that was outstanding waits for hardware that may never
// come back.
//
// A device that reports its own failure ([ib.DeviceHandle.Fail]) is reset too.
//
// A client's Remove may be unable to destroy objects because a call is blocked on the memory of an unresponsive
// process. The client abandons these objects (see package uverbs), and the reset continues.
//
// A client function that does not return, either Remove or an event function, blocks the change, because the client
// still uses the device. Callers limit their wait with a context ([Slot.Reset], [Slot.UnplugContext]).
//
// A driver implements [Hardware], and two features of the device: the error state ([ib.Driver].EnterError) and the
// detachment of user contexts ([ib.Disassociator]).
package slot
