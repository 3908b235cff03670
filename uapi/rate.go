package uapi

// Rate is a static rate limit of a path (enum ibv_rate).
type Rate uint8

// The rates (IBV_RATE_*).
const (
	RateMax      Rate = 0 // that of the port
	Rate2500Mbps Rate = 2
	Rate5Gbps    Rate = 5
	Rate10Gbps   Rate = 3
	Rate20Gbps   Rate = 6
	Rate30Gbps   Rate = 4
	Rate40Gbps   Rate = 7
	Rate60Gbps   Rate = 8
	Rate80Gbps   Rate = 9
	Rate120Gbps  Rate = 10
	Rate14Gbps   Rate = 11
	Rate56Gbps   Rate = 12
	Rate112Gbps  Rate = 13
	Rate168Gbps  Rate = 14
	Rate25Gbps   Rate = 15
	Rate100Gbps  Rate = 16
	Rate200Gbps  Rate = 17
	Rate300Gbps  Rate = 18
	Rate28Gbps   Rate = 19
	Rate50Gbps   Rate = 20
	Rate400Gbps  Rate = 21
	Rate600Gbps  Rate = 22
	Rate800Gbps  Rate = 23
	Rate1200Gbps Rate = 24
)
