package reports

// github is where the trackers are.
const github = "https://github.com/"

// All returns the reports.
func All() []Report {
	return []Report{
		// Work requests.
		{ID: "rdma-core#1269", URL: github + "linux-rdma/rdma-core/pull/1269", Kind: "zero length", Clause: "IBA C9-88", Verbs: zeroBytes},
		{ID: "libfabric#12382", URL: github + "ofiwg/libfabric/pull/12382", Kind: "zero length", Clause: "ibv_post_send(3)", Verbs: holes},
		{ID: "rdma-core#1742", URL: github + "linux-rdma/rdma-core/pull/1742", Kind: "zero length", Clause: "IBA 11.4.2.1", Verbs: emptyDatagram},
		{ID: "rdma-core#1155", URL: github + "linux-rdma/rdma-core/pull/1155", Kind: "errors of datagrams", Clause: "IBA 9.9.3, class D", Verbs: shortDatagramReceive},
		{ID: "perftest#387", URL: github + "linux-rdma/perftest/pull/387", Kind: "immediate data", Clause: "IBA 9.4.3", Verbs: immediateWithoutBuffer},
		{ID: "libfabric#9379", URL: github + "ofiwg/libfabric/pull/9379", Kind: "immediate data", Clause: "IBA 11.4.2.1", Verbs: immediateValue},
		{ID: "rdma-core#146", URL: github + "linux-rdma/rdma-core/pull/146", Kind: "fields of completions", Clause: "IBA 11.4.2.1", Verbs: lengths},
		{ID: "rdma-core#1752", URL: github + "linux-rdma/rdma-core/pull/1752", Kind: "more than 32 bits", Clause: "IBA 11.6.2", Verbs: overflow},
		{ID: "gloo#474", URL: github + "pytorch/gloo/issues/474", Kind: "more than 32 bits", Clause: "IBA 11.6.2", Verbs: longReceive},
		{ID: "lci#75", URL: github + "uiuc-hpc/lci/pull/75", Kind: "address ranges", Clause: "IBA 9.7.4.1.7", Verbs: beyond},
		{ID: "RDMA-Tutorial#13", URL: github + "jcxue/RDMA-Tutorial/issues/13", Kind: "atomics", Clause: "IBA C9-187", Verbs: unaligned},
		{ID: "libfabric#10911", URL: github + "ofiwg/libfabric/issues/10911", Kind: "atomics", Clause: "ibv_post_send(3)", Verbs: compareSwap},
		{ID: "ucx#7215", URL: github + "openucx/ucx/issues/7215", Kind: "fence", Clause: "IBA 10.8.3.3", Verbs: fence},
		{ID: "FastDeploy#8091", URL: github + "PaddlePaddle/FastDeploy/pull/8091", Kind: "full queues", Clause: "ibv_post_send(3)", Verbs: queueFull},
		{ID: "uccl#267", URL: github + "uccl-project/uccl/issues/267", Kind: "bad requests", Clause: "ibv_post_send(3), IBA 10.7.3.1", Verbs: badRequest},
		{ID: "libfabric#1938", URL: github + "ofiwg/libfabric/pull/1938", Kind: "inline data", Clause: "ibv_create_qp(3)", Verbs: inlineCapacity},
		{ID: "infinity#8", URL: github + "claudebarthels/infinity/pull/8", Kind: "sequence numbers", Clause: "IBA 9.7.2; ib_modify_qp masks", Verbs: psnWrap},
		{ID: "thunderbolt-ibverbs#71", URL: github + "hellas-ai/thunderbolt-ibverbs/pull/71", Kind: "retries", Clause: "IBA 9.7.5.2.8", Verbs: rnrForever},
		{ID: "daqiri#138", URL: github + "NVIDIA/daqiri/pull/138", Kind: "timers", Clause: "IBA table 45", Verbs: rnrLongest},
		{ID: "rdma-core#1106", URL: github + "linux-rdma/rdma-core/pull/1106", Kind: "retries", Clause: "IBA 11.6.2; 9.7.6.1.3", Verbs: noPeer},
		{ID: "rdma-core#1220", URL: github + "linux-rdma/rdma-core/pull/1220", Kind: "error statuses", Clause: "IBA 9.9.3", Verbs: rights},
		{ID: "spdk#2261", URL: github + "spdk/spdk/issues/2261", Kind: "READs in flight", Clause: "IBA C9-119, 9.4.4", Verbs: readDepth},

		// States and attributes of queue pairs.
		{ID: "perftest#150", URL: github + "linux-rdma/perftest/issues/150", Kind: "attributes", Clause: "qp_state_table", Verbs: pathInRTS},
		{ID: "Mooncake#721", URL: github + "kvcache-ai/Mooncake/pull/721", Kind: "states", Clause: "IBA 10.3.1", Verbs: resetAgain},
		{ID: "brpc#3261", URL: github + "apache/brpc/pull/3261", Kind: "states", Clause: "IBA 10.3.1.1", Verbs: resetForgets},
		{ID: "rdma-core#1139", URL: github + "linux-rdma/rdma-core/pull/1139", Kind: "states", Clause: "IBA 10.3.1.1", Verbs: postInReset},
		{ID: "ceph#25447", URL: github + "ceph/ceph/pull/25447", Kind: "flushing", Clause: "IBA 10.3.1.6", Verbs: beacon},
		{ID: "sideway#88", URL: github + "RDMA-Rust/sideway/pull/88", Kind: "attributes", Clause: "qp_state_table", Verbs: transitions},
		{ID: "perftest#114", URL: github + "linux-rdma/perftest/issues/114", Kind: "limits", Clause: "rxe_qp_chk_attr", Verbs: ranges},
		{ID: "rdma-core#697", URL: github + "linux-rdma/rdma-core/pull/697", Kind: "queries", Clause: "ibv_query_qp(3)", Verbs: queried},
		{ID: "spdk#640", URL: github + "spdk/spdk/issues/640", Kind: "events", Clause: "IBA 11.6.3.1", Verbs: drain},
		{ID: "rdma-core#60", URL: github + "linux-rdma/rdma-core/pull/60", Kind: "states", Clause: "IBA 10.3.1.5", Verbs: sendQueueError},

		// Queues and their events.
		{ID: "spdk#1697", URL: github + "spdk/spdk/issues/1697", Kind: "events", Clause: "IBA 11.6.3.2", Verbs: lastReceive},
		{ID: "rdma-core#1402", URL: github + "linux-rdma/rdma-core/pull/1402", Kind: "shared receive queues", Clause: "IBA 10.2.9.3", Verbs: limitOnce},
		{ID: "brpc#3425", URL: github + "apache/brpc/pull/3425", Kind: "notification", Clause: "IBA 11.4.2.2", Verbs: armed},
		{ID: "rdma-core#1361", URL: github + "linux-rdma/rdma-core/pull/1361", Kind: "limits", Clause: "ibv_create_cq(3)", Verbs: exact},
		{ID: "libfabric#4913", URL: github + "ofiwg/libfabric/pull/4913", Kind: "overrun", Clause: "IBA 11.6.3.1", Verbs: overrun},
		{ID: "perftest#127", URL: github + "linux-rdma/perftest/pull/127", Kind: "completion queues", Clause: "IBA 11.2.8.3", Verbs: resizeFull},
		{ID: "rust-ibverbs#3", URL: github + "jonhoo/rust-ibverbs/pull/3", Kind: "completion queues", Clause: "ibv_create_qp(3)", Verbs: whichQueue},

		// Memory, windows and groups.
		{ID: "ompi#1101", URL: github + "open-mpi/ompi/pull/1101", Kind: "rights", Clause: "ibv_reg_mr(3)", Verbs: accessFlags},
		{ID: "rdma-example#4", URL: github + "animeshtrivedi/rdma-example/pull/4", Kind: "keys", Clause: "ibv_reg_mr(3)", Verbs: keys},
		{ID: "rdma-core#1777", URL: github + "linux-rdma/rdma-core/pull/1777", Kind: "windows", Clause: "IBA 10.6.7.2", Verbs: windowKeys},
		{ID: "nbs#6542", URL: github + "ydb-platform/nbs/pull/6542", Kind: "windows", Clause: "IBA 10.6.7.2, 9.4.1.1", Verbs: windowRound},
		{ID: "ucx#10332", URL: github + "openucx/ucx/pull/10332", Kind: "windows", Clause: "IBA C10-75, 11.2.10", Verbs: windowRefused},
		{ID: "libevpl#89", URL: github + "chimera-nas/libevpl/pull/89", Kind: "domains", Clause: "IBA 10.2.3, 11.6.3.2", Verbs: domains},
		{ID: "rdma-core#1100", URL: github + "linux-rdma/rdma-core/pull/1100", Kind: "multicast", Clause: "ib_uverbs_attach_mcast", Verbs: groups},
		{ID: "rxe-dev#22", URL: github + "SoftRoCE/rxe-dev/issues/22", Kind: "datagrams", Clause: "IBA 10.2.5", Verbs: qkeys},

		// What package verbs has no words for.
		{ID: "rdma-core#1624", URL: github + "linux-rdma/rdma-core/pull/1624", Kind: "sizes", Clause: "ibv_create_qp(3), ibv_create_srq(3)", C: "sizes"},
		{ID: "smart#2", URL: github + "madsys-dev/smart/issues/2", Kind: "paths", Clause: "rdma_check_ah_attr", C: "route"},
		{ID: "libfabric#6245", URL: github + "ofiwg/libfabric/issues/6245", Kind: "zero length", Clause: "ib_umem_get", C: "lengths"},
		{ID: "libfabric#7243", URL: github + "ofiwg/libfabric/pull/7243", Kind: "rights", Clause: "ibv_reg_mr(3)", C: "readonly"},
		{ID: "ucx#9350", URL: github + "openucx/ucx/pull/9350", Kind: "more than 32 bits", Clause: "ibv_reg_mr(3), ib_uverbs_reg_mr", C: "iova"},
		{ID: "rdma-core#1744", URL: github + "linux-rdma/rdma-core/pull/1744", Kind: "lists", Clause: "ibv_wr_post(3)", C: "sge_list"},
		{ID: "rdma-core#1751", URL: github + "linux-rdma/rdma-core/pull/1751", Kind: "inline data", Clause: "ibv_wr_post(3)", C: "inline_list"},
		{ID: "ucx#11237", URL: github + "openucx/ucx/pull/11237", Kind: "tables and sysfs", Clause: "show_port_gid, _show_port_gid_attr", C: "tables"},
		{ID: "gloo#147", URL: github + "pytorch/gloo/issues/147", Kind: "counts of users", Clause: "ibv_create_comp_channel(3)", C: "channel_users"},
		{ID: "ucx#1039", URL: github + "openucx/ucx/issues/1039", Kind: "acknowledged events", Clause: "ibv_get_cq_event(3)", C: "late_acks"},
		{ID: "rdma-core#1222", URL: github + "linux-rdma/rdma-core/pull/1222", Kind: "fork", Clause: "ibv_fork_init(3)", C: "children"},

		// Connections.
		{ID: "rpma#184", URL: github + "pmem/rpma/issues/184", Kind: "private data", Clause: "rdma_accept(3)", CM: privateData},
		{ID: "ucx#5460", URL: github + "openucx/ucx/pull/5460", Kind: "private data", Clause: "rdma_reject(3)", CM: refusalData},
		{ID: "ucx#4719", URL: github + "openucx/ucx/pull/4719", Kind: "answers", Clause: "rdma_reject", CM: answeredTwice},
		{ID: "ucx#3516", URL: github + "openucx/ucx/pull/3516", Kind: "ports", Clause: "cma_check_port", CM: portInUse},
		{ID: "spdk#2604", URL: github + "spdk/spdk/issues/2604", Kind: "ports", Clause: "rdma_resolve_addr(3)", CM: sourceAddress},
	}
}
