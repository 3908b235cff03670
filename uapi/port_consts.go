package uapi

// PortState is the logical state of a port (enum ibv_port_state).
type PortState uint8

// The port states (IBV_PORT_*).
const (
	PortNop         PortState = iota // NOP
	PortDown                         // DOWN
	PortInit                         // INIT
	PortArmed                        // ARMED
	PortActive                       // ACTIVE
	PortActiveDefer                  // ACTIVE_DEFER
)

// PortPhysState is the physical state of a port (IBA 14.2.5.6 PortInfo).
type PortPhysState uint8

// The physical port states.
const (
	PortPhysSleep             PortPhysState = iota + 1 // Sleep
	PortPhysPolling                                    // Polling
	PortPhysDisabled                                   // Disabled
	PortPhysTraining                                   // PortConfigurationTraining
	PortPhysLinkUp                                     // LinkUp
	PortPhysLinkErrorRecovery                          // LinkErrorRecovery
	PortPhysTest                                       // Phy Test
)

// PortWidth is the width of a link, such as 1x or 4x (enum ib_port_width).
type PortWidth uint8

// The widths of links.
const (
	PortWidth1X  PortWidth = 1
	PortWidth4X  PortWidth = 2
	PortWidth8X  PortWidth = 4
	PortWidth12X PortWidth = 8
	PortWidth2X  PortWidth = 16
)

// PortSpeed is the signalling rate of a link of width 1x (enum ib_port_speed).
type PortSpeed uint16

// The signalling rates.
const (
	PortSpeedSDR   PortSpeed = 1   // 2.5 Gb/s
	PortSpeedDDR   PortSpeed = 2   // 5 Gb/s
	PortSpeedQDR   PortSpeed = 4   // 10 Gb/s
	PortSpeedFDR10 PortSpeed = 8   // 10.3125 Gb/s
	PortSpeedFDR   PortSpeed = 16  // 14 Gb/s
	PortSpeedEDR   PortSpeed = 32  // 25 Gb/s
	PortSpeedHDR   PortSpeed = 64  // 50 Gb/s
	PortSpeedNDR   PortSpeed = 128 // 100 Gb/s
	PortSpeedXDR   PortSpeed = 256 // 200 Gb/s
)

// LinkLayer is the kind of network to which a port is connected (IBV_LINK_LAYER_*).
type LinkLayer uint8

// The link layers.
const (
	LinkLayerUnspecified LinkLayer = iota // Unspecified
	LinkLayerInfiniBand                   // InfiniBand
	LinkLayerEthernet                     // Ethernet
)

// PortCapFlags are the features of a port (enum ib_uverbs_query_port_cap_flags).
type PortCapFlags uint32

// The port features (IB_UVERBS_PCF_*).
const (
	PCFSM                          PortCapFlags = 1 << 1
	PCFNoticeSup                   PortCapFlags = 1 << 2
	PCFTrapSup                     PortCapFlags = 1 << 3
	PCFOptIPDSup                   PortCapFlags = 1 << 4
	PCFAutoMigrSup                 PortCapFlags = 1 << 5
	PCFSLMapSup                    PortCapFlags = 1 << 6
	PCFMKeyNVRAM                   PortCapFlags = 1 << 7
	PCFPKeyNVRAM                   PortCapFlags = 1 << 8
	PCFLEDInfoSup                  PortCapFlags = 1 << 9
	PCFSMDisabled                  PortCapFlags = 1 << 10
	PCFSysImageGUIDSup             PortCapFlags = 1 << 11
	PCFPKeySWExtPortTrapSup        PortCapFlags = 1 << 12
	PCFExtendedSpeedsSup           PortCapFlags = 1 << 14
	PCFCapMask2Sup                 PortCapFlags = 1 << 15 // PortCapFlags2 is valid (IBV_PORT_CAP_MASK2_SUP)
	PCFCMSup                       PortCapFlags = 1 << 16
	PCFSNMPTunnelSup               PortCapFlags = 1 << 17
	PCFReinitSup                   PortCapFlags = 1 << 18
	PCFDeviceMgmtSup               PortCapFlags = 1 << 19
	PCFVendorClassSup              PortCapFlags = 1 << 20
	PCFDRNoticeSup                 PortCapFlags = 1 << 21
	PCFCapMaskNoticeSup            PortCapFlags = 1 << 22
	PCFBootMgmtSup                 PortCapFlags = 1 << 23
	PCFLinkLatencySup              PortCapFlags = 1 << 24
	PCFClientRegSup                PortCapFlags = 1 << 25
	PCFIPBasedGIDs                 PortCapFlags = 1 << 26 // defined by the kernel, not by the IBA specification
	PCFLinkSpeedWidthTableSup      PortCapFlags = 1 << 27
	PCFVendorSpecificMADsTableSup  PortCapFlags = 1 << 28
	PCFMcastPKeyTrapSuppressionSup PortCapFlags = 1 << 29
	PCFMcastFDBTopSup              PortCapFlags = 1 << 30
	PCFHierarchyInfoSup            PortCapFlags = 1 << 31
)

// PortCapFlags2 are additional features of a port (enum ibv_port_cap_flags2).
type PortCapFlags2 uint16

// QueryPortFlags are the flags of QueryPortResp
// (enum ib_uverbs_query_port_flags).
type QueryPortFlags uint8

// The flags of a port (IB_UVERBS_QPF_*).
const (
	QPFGRHRequired QueryPortFlags = 1 << 0 // every address needs a GRH, as with RoCE
)
