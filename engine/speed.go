package engine

import (
	"slices"

	"verbena/uapi"
)

// portRate is a combination of a width and a speed that a port can have.
type portRate struct {
	max   uint64 // in bits per second
	width uapi.PortWidth
	speed uapi.PortSpeed
}

// portRates lists the combinations by increasing rate. Up to 40 Gb/s they are the kernel's combinations for a network
// driver that does not report its width. (ib_get_width_and_speed)
var portRates = []portRate{
	{1e9, uapi.PortWidth1X, uapi.PortSpeedSDR},
	{10e9, uapi.PortWidth1X, uapi.PortSpeedFDR10},
	{20e9, uapi.PortWidth4X, uapi.PortSpeedDDR},
	{25e9, uapi.PortWidth1X, uapi.PortSpeedEDR},
	{40e9, uapi.PortWidth4X, uapi.PortSpeedFDR10},
	{100e9, uapi.PortWidth4X, uapi.PortSpeedEDR},
	{200e9, uapi.PortWidth4X, uapi.PortSpeedHDR},
	{400e9, uapi.PortWidth4X, uapi.PortSpeedNDR},
	{800e9, uapi.PortWidth4X, uapi.PortSpeedXDR},
	{1600e9, uapi.PortWidth8X, uapi.PortSpeedXDR},
}

// unknownPortSpeed is the effective speed of a port without a known speed: 1X SDR, in units of 100 Mb/s.
const unknownPortSpeed = 25

// portRateOf returns the smallest combination with at least the given number of bits per second, or the largest one. 0
// means an unknown speed, which counts as 1 Gb/s. (ib_get_eth_speed)
func portRateOf(bps uint64) portRate {
	i := slices.IndexFunc(portRates, func(r portRate) bool { return bps <= r.max })
	if i < 0 {
		i = len(portRates) - 1
	}
	return portRates[i]
}

// PortSpeed implements ib.PortSpeeder. A speed below 100 Mb/s counts as 100 Mb/s.
func (o ops) PortSpeed(port int) (uint64, error) {
	if _, err := o.QueryPort(port); err != nil {
		return 0, err
	}
	const unit = 100e6
	bps := o.dev.at.Load().netdev.Speed
	if bps == 0 {
		return unknownPortSpeed, nil
	}
	return max(bps/unit, 1), nil
}
