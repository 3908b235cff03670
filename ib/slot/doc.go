// Package slot is where a device is plugged in: it brings a driver's hardware into the midlayer and takes it out, by
// hot-plug, hot-unplug and reset, in the order that contract point 6 of package ib gives. It stands for what the PCI
// core and a driver do together in Linux (struct pci_driver, struct pci_error_handlers).
//
//	        Plug                 Reset                       the hardware answers again
//	Empty -------> Running --------------> Recovering ---------------------------------+
//	  ^               ^                        |                                       |
//	  |               +------------------------|---------------------------------------+
//	  +------------------- Unplug -------------+   (from any state; also when recovery fails)
//
// A reset runs through these steps:
//
//  1. The fatal event is dispatched (IBV_EVENT_DEVICE_FATAL).
//  2. The hardware is reset by its driver, if it answers.
//  3. The device enters the error state: whatever is outstanding completes with a flush error.
//  4. The device is unregistered, with each client's ordinary shutdown; user contexts become zombies at once.
//  5. If the hardware did not answer, the driver waits until the platform has reset it, perhaps for ever.
//  6. The driver makes a new device of the hardware, which is registered.
//
// The wait of step 5 comes after the shutdown, so that nothing that was outstanding waits for hardware that may never
// come back.
//
// A device that reports its own failure ([ib.DeviceHandle.Fail]) is reset too.
//
// Clients whose Remove cannot free all, because a call is stopped in the memory of a process that does not answer, abandon it
// (see package uverbs): the reset goes on.
//
// A client that does not return from a function of its own, its Remove or one for events, holds up the change: there is no way
// around what it still uses. Those who wait for it have a context for that ([Slot.Reset], [Slot.UnplugContext]).
//
// A driver takes part with [Hardware], and with two things in the device itself: the error state ([ib.Driver].EnterError) and
// the end of a user context ([ib.Disassociator]).
package slot
