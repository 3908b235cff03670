package verb

import "verbena/uapi"

// Table is the table of verbs. The kernel returns EOPNOTSUPP for an unknown command, and EPROTONOSUPPORT for an unknown
// method. Commands and methods that are not in the table belong to objects of drivers that do not exist in this module
// (uapi_finalize_disable).
//
// The following parts derive from the table: the dispatcher of package uverbs, the names in errors and traces, the
// verbs of fault rules, the tables of docs/results/verbs.md and docs/results/states.md, and verbenavet's list of atomic
// methods.
var Table = []Spec{
	// The next rows are the verbs of the device.
	{
		Name: "open_device", Aliases: []string{"get_context"}, Effect: Makes,
		Commands: []Command{commandWithResponse[uapi.GetContext, uapi.GetContextResp](uapi.CmdGetContext).withDriverData()},
		Methods: []Method{{uapi.ObjectDevice, uapi.MethodGetContext, withDriverAttrs(
			valueOut(uapi.AttrGetContextNumCompVectors, 4), valueOut(uapi.AttrGetContextCoreSupport, 8),
		)}},
	},
	{
		Name: "import_device", Effect: Reads,
		Methods: []Method{{uapi.ObjectDevice, uapi.MethodQueryContext, []Attr{
			valueOut(uapi.AttrQueryContextNumCompVectors, 4), valueOut(uapi.AttrQueryContextCoreSupport, 8),
		}}},
	},
	{
		Name: "query_device", Aliases: []string{"query_device_ex"}, Effect: Reads,
		Commands: []Command{commandWithResponse[uapi.QueryDevice, uapi.QueryDeviceResp](uapi.CmdQueryDevice),
			extendedCommand(uapi.ExCmdQueryDevice)},
		Midlayer: []string{"Device.QueryDevice"}, Driver: []string{"Driver.QueryDevice"},
	},
	{
		Name: "query_port", Effect: Reads,
		Commands: []Command{commandWithResponse[uapi.QueryPort, uapi.QueryPortResp](uapi.CmdQueryPort)},
		Methods: []Method{{uapi.ObjectDevice, uapi.MethodQueryPort, []Attr{
			constIn(uapi.AttrQueryPortPortNum), structOut[uapi.QueryPortRespEx](uapi.AttrQueryPortResp),
		}}},
		Midlayer: []string{"Device.QueryPort"}, Driver: []string{"Driver.QueryPort"},
	},
	{
		Name: "query_port_speed", Effect: Reads,
		Methods: []Method{{uapi.ObjectDevice, uapi.MethodQueryPortSpeed, []Attr{
			constIn(uapi.AttrQueryPortSpeedPortNum), valueOut(uapi.AttrQueryPortSpeedResp, 8).required(),
		}}},
		Midlayer: []string{"Device.QueryPortSpeed"}, Driver: []string{"PortSpeeder.PortSpeed"},
	},
	{
		Name: "query_gid_table", Effect: Reads,
		Methods: []Method{{uapi.ObjectDevice, uapi.MethodQueryGIDTable, []Attr{
			constIn(uapi.AttrQueryGIDTableEntrySize), flagsIn(uapi.AttrQueryGIDTableFlags),
			bytesOut(uapi.AttrQueryGIDTableRespEntries, 0).required(),
			valueOut(uapi.AttrQueryGIDTableRespNumEntries, 8).required(),
		}}},
	},
	{
		Name: "query_gid", Aliases: []string{"query_gid_ex"}, Effect: Reads,
		Methods: []Method{{uapi.ObjectDevice, uapi.MethodQueryGIDEntry, []Attr{
			constIn(uapi.AttrQueryGIDEntryPort), constIn(uapi.AttrQueryGIDEntryGIDIndex),
			flagsIn(uapi.AttrQueryGIDEntryFlags).required(),
			structOut[uapi.GIDEntry](uapi.AttrQueryGIDEntryRespEntry),
		}}},
		Midlayer: []string{"Device.QueryGID", "Device.FindGID"}, Driver: []string{"Driver.QueryGID"},
	},
	{Effect: Reads, Atomic: true, Driver: []string{"GIDDriver.GIDTable"}},
	{Effect: Makes, Midlayer: []string{"Device.GetGID"}},
	{Effect: Destroys, Atomic: true, Midlayer: []string{"GIDRef.Put"}},
	{Effect: Reads, Midlayer: []string{"Device.QueryPKey", "Device.FindPKey"}, Driver: []string{"Driver.QueryPKey"}},
	{Effect: Reads, Midlayer: []string{"Device.Local"}},
	{
		Name: "info_handles", Effect: Lists,
		Methods: []Method{{uapi.ObjectDevice, uapi.MethodInfoHandles, []Attr{
			constIn(uapi.AttrInfoObjectID), valueOut(uapi.AttrInfoTotalHandles, 4), bytesOut(uapi.AttrInfoHandlesList, 4),
		}}},
	},
	{
		Name: "alloc_async_event", Effect: Reads,
		Methods: []Method{{uapi.ObjectAsyncEvent, uapi.MethodAsyncEventAlloc,
			[]Attr{newHandle(uapi.AttrAsyncEventAllocFDHandle, uapi.ObjectAsyncEvent)}}},
	},
	{ // executes a command of the write form, which determines the effect
		Effect: Lists,
		Methods: []Method{{uapi.ObjectDevice, uapi.MethodInvokeWrite, withDriverAttrs(
			constIn(uapi.AttrWriteCmd), bytesIn(uapi.AttrCoreIn, 4), bytesOut(uapi.AttrCoreOut, 0),
		)}},
	},

	// The next rows are the verbs of protection domains.
	{
		Name: "alloc_pd", Effect: Makes,
		Commands: []Command{commandWithResponse[uapi.AllocPD, uapi.AllocPDResp](uapi.CmdAllocPD).withDriverData()},
		Midlayer: []string{"Device.AllocPD"}, Driver: []string{"Driver.AllocPD"},
	},
	{
		Name: "dealloc_pd", Effect: Destroys,
		Commands: []Command{plainCommand[uapi.DeallocPD](uapi.CmdDeallocPD)},
		Methods: []Method{{uapi.ObjectPD, uapi.MethodPDDestroy,
			[]Attr{destroyHandle(uapi.AttrDestroyPDHandle, uapi.ObjectPD)}}},
		Midlayer: []string{"PD.Dealloc"}, Driver: []string{"DriverPD.Dealloc"},
	},

	// The next rows are the verbs of address handles.
	{
		Name: "create_ah", Effect: Makes, Atomic: true,
		Commands: []Command{commandWithResponse[uapi.CreateAH, uapi.CreateAHResp](uapi.CmdCreateAH).withDriverData()},
		Midlayer: []string{"PD.CreateAH"}, Driver: []string{"AHDriver.CreateAH"},
	},
	{Effect: Makes, Atomic: true, Midlayer: []string{"AH.Modify"}, Driver: []string{"DriverAH.Modify"}},
	{Effect: Reads, Atomic: true, Midlayer: []string{"AH.Query"}, Driver: []string{"DriverAH.Query"}},
	{
		Name: "destroy_ah", Effect: Destroys, Atomic: true,
		Commands: []Command{plainCommand[uapi.DestroyAH](uapi.CmdDestroyAH)},
		Methods: []Method{{uapi.ObjectAH, uapi.MethodAHDestroy,
			[]Attr{destroyHandle(uapi.AttrDestroyAHHandle, uapi.ObjectAH)}}},
		Midlayer: []string{"AH.Destroy"}, Driver: []string{"DriverAH.Destroy"},
	},

	// The next rows are the verbs of memory regions.
	{
		Name: "reg_mr", Aliases: []string{"reg_mr_iova", "reg_mr_iova2"}, Effect: Makes,
		Commands: []Command{commandWithResponse[uapi.RegMR, uapi.RegMRResp](uapi.CmdRegMR).withDriverData()},
		Methods: []Method{{uapi.ObjectMR, uapi.MethodRegMR, []Attr{
			newHandle(uapi.AttrRegMRHandle, uapi.ObjectMR), useHandle(uapi.AttrRegMRPDHandle, uapi.ObjectPD),
			numberIn(uapi.AttrRegMRIOVA, 8),
			numberIn(uapi.AttrRegMRAddr, 8).optional(), numberIn(uapi.AttrRegMRLength, 8),
			flagsIn(uapi.AttrRegMRAccessFlags).required(),
			numberIn(uapi.AttrRegMRFD, 4).optional(), numberIn(uapi.AttrRegMRFDOffset, 8).optional(),
			valueOut(uapi.AttrRegMRRespLKey, 4).required(), valueOut(uapi.AttrRegMRRespRKey, 4).required(),
		}}},
		Midlayer: []string{"PD.RegMR", "PD.RegBytes"}, Driver: []string{"Driver.RegMR"},
	},
	{
		Name: "reg_dmabuf_mr", Effect: Makes,
		Methods: []Method{{uapi.ObjectMR, uapi.MethodRegDMABufMR, []Attr{
			newHandle(uapi.AttrRegDMABufMRHandle, uapi.ObjectMR), useHandle(uapi.AttrRegDMABufMRPDHandle, uapi.ObjectPD),
			numberIn(uapi.AttrRegDMABufMROffset, 8), numberIn(uapi.AttrRegDMABufMRLength, 8),
			numberIn(uapi.AttrRegDMABufMRIOVA, 8),
			numberIn(uapi.AttrRegDMABufMRFD, 4), flagsIn(uapi.AttrRegDMABufMRAccessFlags),
			valueOut(uapi.AttrRegDMABufMRRespLKey, 4).required(), valueOut(uapi.AttrRegDMABufMRRespRKey, 4).required(),
		}}},
	},
	{
		Name: "rereg_mr", Effect: Makes,
		Commands: []Command{commandWithResponse[uapi.ReregMR, uapi.ReregMRResp](uapi.CmdReregMR).withDriverData()},
		Midlayer: []string{"MR.Rereg"},
	},
	{
		Name: "advise_mr", Effect: Makes,
		Methods: []Method{{uapi.ObjectMR, uapi.MethodAdviseMR, []Attr{
			useHandle(uapi.AttrAdviseMRPDHandle, uapi.ObjectPD), constIn(uapi.AttrAdviseMRAdvice),
			flagsIn(uapi.AttrAdviseMRFlags).required(),
			bytesIn(uapi.AttrAdviseMRSGEList, uapi.SizeOf[uapi.SGE]()).required(),
		}}},
		Midlayer: []string{"PD.AdviseMR"}, Driver: []string{"MRAdviser.AdviseMR"},
	},
	{
		Name: "import_mr", Effect: Reads,
		Methods: []Method{{uapi.ObjectMR, uapi.MethodQueryMR, []Attr{
			useHandle(uapi.AttrQueryMRHandle, uapi.ObjectMR), valueOut(uapi.AttrQueryMRRespLKey, 4).required(),
			valueOut(uapi.AttrQueryMRRespRKey, 4).required(),
			valueOut(uapi.AttrQueryMRRespLength, 8).required(), valueOut(uapi.AttrQueryMRRespIOVA, 8),
		}}},
	},
	{
		Name: "dereg_mr", Effect: Destroys,
		Commands: []Command{plainCommand[uapi.DeregMR](uapi.CmdDeregMR)},
		Methods: []Method{{uapi.ObjectMR, uapi.MethodMRDestroy,
			[]Attr{destroyHandle(uapi.AttrDestroyMRHandle, uapi.ObjectMR)}}},
		Midlayer: []string{"MR.Dereg"}, Driver: []string{"DriverMR.Dereg"},
	},
	{Effect: Makes, Midlayer: []string{"PD.AllocMR"}, Driver: []string{"FastRegDriver.AllocMR"}},
	{Effect: Makes, Midlayer: []string{"MR.Map"}, Driver: []string{"FastMR.Map"}},

	// The next rows are the verbs of memory windows.
	{
		Name: "alloc_mw", Effect: Makes,
		Commands: []Command{commandWithResponse[uapi.AllocMW, uapi.AllocMWResp](uapi.CmdAllocMW).withDriverData()},
		Midlayer: []string{"PD.AllocMW"}, Driver: []string{"MWDriver.AllocMW"},
	},
	{
		Name: "dealloc_mw", Effect: Destroys,
		Commands: []Command{plainCommand[uapi.DeallocMW](uapi.CmdDeallocMW)},
		Methods: []Method{{uapi.ObjectMW, uapi.MethodMWDestroy,
			[]Attr{destroyHandle(uapi.AttrDestroyMWHandle, uapi.ObjectMW)}}},
		Midlayer: []string{"MW.Dealloc"}, Driver: []string{"DriverMW.Dealloc"},
	},

	// Completion queues. A channel belongs to the core alone. A channel therefore works on a device in the error state.
	{
		Name: "create_comp_channel", Effect: Reads,
		Commands: []Command{commandWithResponse[uapi.CreateCompChannel,
			uapi.CreateCompChannelResp](uapi.CmdCreateCompChannel)},
	},
	{
		Name: "create_cq", Aliases: []string{"create_cq_ex"}, Effect: Makes,
		Commands: []Command{commandWithResponse[uapi.CreateCQ, uapi.CreateCQResp](uapi.CmdCreateCQ).withDriverData(),
			extendedCommand(uapi.ExCmdCreateCQ)},
		Methods: []Method{{uapi.ObjectCQ, uapi.MethodCQCreate, withDriverAttrs(
			newHandle(uapi.AttrCreateCQHandle, uapi.ObjectCQ), numberIn(uapi.AttrCreateCQCQE, 4),
			numberIn(uapi.AttrCreateCQUserHandle, 8),
			fileIn(uapi.AttrCreateCQCompChannel), numberIn(uapi.AttrCreateCQCompVector, 4), flagsIn(uapi.AttrCreateCQFlags),
			valueOut(uapi.AttrCreateCQRespCQE, 4).required(), fileIn(uapi.AttrCreateCQEventFD),
		)}},
		Midlayer: []string{"Device.CreateCQ"}, Driver: []string{"Driver.CreateCQ"},
	},
	{
		Name: "resize_cq", Effect: Makes,
		Commands: []Command{commandWithResponse[uapi.ResizeCQ, uapi.ResizeCQResp](uapi.CmdResizeCQ).withDriverData()},
		Midlayer: []string{"CQ.Resize"}, Driver: []string{"CQResizer.Resize"},
	},
	{Effect: Makes, Midlayer: []string{"CQ.Moderate"}, Driver: []string{"CQModerator.Moderate"}},
	{
		Effect: Reads, Atomic: true,
		Commands: []Command{commandWithResponse[uapi.PollCQ, uapi.PollCQResp](uapi.CmdPollCQ)},
		Midlayer: []string{"CQ.Poll"}, Driver: []string{"DriverCQ.Poll"},
	},
	{
		Name: "req_notify_cq", Effect: Reads, Atomic: true,
		Commands: []Command{plainCommand[uapi.ReqNotifyCQ](uapi.CmdReqNotifyCQ)},
		Midlayer: []string{"CQ.ReqNotify"}, Driver: []string{"DriverCQ.ReqNotify"},
	},
	{
		Name: "destroy_cq", Effect: Destroys,
		Commands: []Command{commandWithResponse[uapi.DestroyCQ, uapi.DestroyCQResp](uapi.CmdDestroyCQ)},
		Methods: []Method{{uapi.ObjectCQ, uapi.MethodCQDestroy, []Attr{
			destroyHandle(uapi.AttrDestroyCQHandle, uapi.ObjectCQ), responseOut[uapi.DestroyCQResp](uapi.AttrDestroyCQResp),
		}}},
		Midlayer: []string{"CQ.Destroy"}, Driver: []string{"DriverCQ.Destroy"},
	},

	// The next rows are the verbs of queue pairs.
	{
		Name: "create_qp", Aliases: []string{"create_qp_ex"}, Effect: Makes,
		Commands: []Command{commandWithResponse[uapi.CreateQP, uapi.CreateQPResp](uapi.CmdCreateQP).withDriverData(),
			extendedCommand(uapi.ExCmdCreateQP)},
		Methods: []Method{{uapi.ObjectQP, uapi.MethodQPCreate, withDriverAttrs(
			newHandle(uapi.AttrCreateQPHandle, uapi.ObjectQP),
			useHandle(uapi.AttrCreateQPXRCDHandle, uapi.ObjectXRCD).optional(),
			useHandle(uapi.AttrCreateQPPDHandle, uapi.ObjectPD).optional(),
			useHandle(uapi.AttrCreateQPSRQHandle, uapi.ObjectSRQ).optional(),
			useHandle(uapi.AttrCreateQPSendCQHandle, uapi.ObjectCQ).optional(),
			useHandle(uapi.AttrCreateQPRecvCQHandle, uapi.ObjectCQ).optional(),
			numberIn(uapi.AttrCreateQPUserHandle, 8), structIn[uapi.QPCap](uapi.AttrCreateQPCap), constIn(uapi.AttrCreateQPType),
			flagsIn(uapi.AttrCreateQPFlags), numberIn(uapi.AttrCreateQPSourceQPN, 4).optional(),
			fileIn(uapi.AttrCreateQPEventFD),
			structOut[uapi.QPCap](uapi.AttrCreateQPRespCap), valueOut(uapi.AttrCreateQPRespQPNum, 4).required(),
		)}},
		Midlayer: []string{"PD.CreateQP"}, Driver: []string{"Driver.CreateQP"},
	},
	{
		Name: "open_qp", Effect: Makes,
		Commands: []Command{commandWithResponse[uapi.OpenQP, uapi.CreateQPResp](uapi.CmdOpenQP).withDriverData()},
	},
	{
		Name: "query_qp", Effect: Reads,
		Commands: []Command{commandWithResponse[uapi.QueryQP, uapi.QueryQPResp](uapi.CmdQueryQP)},
		Midlayer: []string{"QP.Query"}, Driver: []string{"DriverQP.Query"},
	},
	{Effect: Reads, Atomic: true, Midlayer: []string{"QP.State"}, Driver: []string{"DriverQP.State"}},
	{ // a transition to ERR or RESET also works on a device in the error state
		Name: "modify_qp", Effect: Makes,
		Commands: []Command{plainCommand[uapi.ModifyQP](uapi.CmdModifyQP), extendedCommand(uapi.ExCmdModifyQP)},
		Midlayer: []string{"QP.Modify", "QP.Prepare", "QP.Connect", "QP.ConnectDatagram"},
		Driver:   []string{"DriverQP.Modify"},
	},
	{
		Name: "destroy_qp", Effect: Destroys,
		Commands: []Command{commandWithResponse[uapi.DestroyQP, uapi.DestroyQPResp](uapi.CmdDestroyQP)},
		Methods: []Method{{uapi.ObjectQP, uapi.MethodQPDestroy, []Attr{
			destroyHandle(uapi.AttrDestroyQPHandle, uapi.ObjectQP), responseOut[uapi.DestroyQPResp](uapi.AttrDestroyQPResp),
		}}},
		Midlayer: []string{"QP.Destroy"}, Driver: []string{"DriverQP.Destroy"},
	},
	{
		Effect: Posts, Atomic: true,
		Commands: []Command{commandWithResponse[uapi.PostSend, uapi.PostSendResp](uapi.CmdPostSend)},
		Midlayer: []string{"QP.PostSend"}, Driver: []string{"DriverQP.PostSend", "UserQP.Doorbell", "UserQP.Posted"},
	},
	{
		Effect: Posts, Atomic: true,
		Commands: []Command{commandWithResponse[uapi.PostRecv, uapi.PostRecvResp](uapi.CmdPostRecv)},
		Midlayer: []string{"QP.PostRecv"}, Driver: []string{"DriverQP.PostRecv"},
	},
	{
		Name: "attach_mcast", Effect: Makes,
		Commands: []Command{plainCommand[uapi.AttachMcast](uapi.CmdAttachMcast)},
		Midlayer: []string{"QP.AttachMcast"}, Driver: []string{"McastQP.AttachMcast"},
	},
	{ // a zombie has no attachments
		Name: "detach_mcast", Effect: Reads,
		Commands: []Command{plainCommand[uapi.DetachMcast](uapi.CmdDetachMcast)},
		Midlayer: []string{"QP.DetachMcast"}, Driver: []string{"McastQP.DetachMcast"},
	},

	// Shared receive queues. A receive in an SRQ belongs to no queue pair and is not flushed (IBA 10.2.9.3).
	{
		Name: "create_srq", Aliases: []string{"create_srq_ex"}, Effect: Makes,
		Commands: []Command{
			commandWithResponse[uapi.CreateSRQ, uapi.CreateSRQResp](uapi.CmdCreateSRQ).withDriverData(),
			commandWithResponse[uapi.CreateXSRQ, uapi.CreateSRQResp](uapi.CmdCreateXSRQ).withDriverData(),
		},
		Methods: []Method{{uapi.ObjectSRQ, uapi.MethodSRQCreate, withDriverAttrs(
			newHandle(uapi.AttrCreateSRQHandle, uapi.ObjectSRQ), useHandle(uapi.AttrCreateSRQPDHandle, uapi.ObjectPD),
			constIn(uapi.AttrCreateSRQType),
			numberIn(uapi.AttrCreateSRQUserHandle, 8), numberIn(uapi.AttrCreateSRQMaxWR, 4),
			numberIn(uapi.AttrCreateSRQMaxSGE, 4),
			numberIn(uapi.AttrCreateSRQLimit, 4), useHandle(uapi.AttrCreateSRQXRCDHandle, uapi.ObjectXRCD).optional(),
			useHandle(uapi.AttrCreateSRQCQHandle, uapi.ObjectCQ).optional(),
			numberIn(uapi.AttrCreateSRQMaxNumTags, 4).optional(),
			fileIn(uapi.AttrCreateSRQEventFD), valueOut(uapi.AttrCreateSRQRespMaxWR, 4).required(),
			valueOut(uapi.AttrCreateSRQRespMaxSGE, 4).required(), valueOut(uapi.AttrCreateSRQRespSRQNum, 4),
		)}},
		Midlayer: []string{"PD.CreateSRQ"}, Driver: []string{"SRQDriver.CreateSRQ"},
	},
	{
		Name: "modify_srq", Effect: Makes,
		Commands: []Command{plainCommand[uapi.ModifySRQ](uapi.CmdModifySRQ).withDriverData()},
		Midlayer: []string{"SRQ.Modify"}, Driver: []string{"DriverSRQ.Modify"},
	},
	{
		Name: "query_srq", Effect: Reads,
		Commands: []Command{commandWithResponse[uapi.QuerySRQ, uapi.QuerySRQResp](uapi.CmdQuerySRQ)},
		Midlayer: []string{"SRQ.Query"}, Driver: []string{"DriverSRQ.Query"},
	},
	{
		Name: "destroy_srq", Effect: Destroys,
		Commands: []Command{commandWithResponse[uapi.DestroySRQ, uapi.DestroySRQResp](uapi.CmdDestroySRQ)},
		Methods: []Method{{uapi.ObjectSRQ, uapi.MethodSRQDestroy, []Attr{
			destroyHandle(uapi.AttrDestroySRQHandle, uapi.ObjectSRQ), responseOut[uapi.DestroySRQResp](uapi.AttrDestroySRQResp),
		}}},
		Midlayer: []string{"SRQ.Destroy"}, Driver: []string{"DriverSRQ.Destroy"},
	},
	{
		Effect: Reads, Atomic: true,
		Commands: []Command{commandWithResponse[uapi.PostSRQRecv, uapi.PostSRQRecvResp](uapi.CmdPostSRQRecv)},
		Midlayer: []string{"SRQ.PostRecv"}, Driver: []string{"DriverSRQ.PostRecv"},
	},

	// The next rows are the verbs of XRC domains.
	{
		Name: "open_xrcd", Effect: Makes,
		Commands: []Command{commandWithResponse[uapi.OpenXRCD, uapi.OpenXRCDResp](uapi.CmdOpenXRCD).withDriverData()},
		Midlayer: []string{"Device.AllocXRCD"}, Driver: []string{"XRCDriver.AllocXRCD"},
	},
	{
		Name: "close_xrcd", Effect: Destroys,
		Commands: []Command{plainCommand[uapi.CloseXRCD](uapi.CmdCloseXRCD)},
		Methods: []Method{{uapi.ObjectXRCD, uapi.MethodXRCDDestroy,
			[]Attr{destroyHandle(uapi.AttrDestroyXRCDHandle, uapi.ObjectXRCD)}}},
		Midlayer: []string{"XRCD.Dealloc"}, Driver: []string{"DriverXRCD.Dealloc"},
	},
}
