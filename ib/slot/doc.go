// Package slot manages the life cycle of a device: hot-plug, hot-unplug and reset. The order of the steps follows
// contract point 6 of package ib. The package corresponds to the interplay of the PCI core and a driver in Linux
// (struct pci_driver, struct pci_error_handlers).
//
//	        Plug                 Reset                       the hardware responds again
//	Empty -------> Running --------------> Recovering ---------------------------------+
//	  ^               ^                        |                                       |
//	  |               +------------------------|---------------------------------------+
//	  +------------------- Unplug -------------+   (from any state; also when recovery fails)
//
// A reset runs through these steps:
//
// 1. The fatal event is dispatched (IBV_EVENT_DEVICE_FATAL). 2. The driver resets the hardware, if the hardware
// responds. 3. The device enters the error state: all outstanding work completes with a flush error. 4. The device is
// unregistered, and each client shuts down in the normal way. User contexts become zombies at once. 5. If the hardware
// did not respond, the driver waits until the platform has reset the hardware. The wait may be endless. 6. The driver
// creates a new device for the hardware, and this device is registered.
//
// Step 5 follows the shutdown. Outstanding work therefore never waits for hardware that may not recover.
//
// A device that reports its own failure ([ib.DeviceHandle.Fail]) is reset too.
//
// A client's Remove may be unable to destroy objects because a call is blocked on the memory of an unresponsive
// process. The client abandons these objects (see package uverbs), and the reset continues.
//
// If a Remove or an event function of a client does not return, it blocks the change, because the client still uses the
// device. Callers limit their own wait with a context ([Slot.Reset], [Slot.UnplugContext]).
//
// A driver implements [Hardware] and two features of the device. The features are the error state
// ([ib.Driver].EnterError) and the detachment of user contexts ([ib.Disassociator]).
package slot
