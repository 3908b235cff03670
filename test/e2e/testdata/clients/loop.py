"""A Python program that uses pyverbs: one queue pair, connected to itself, sends messages."""
from pyverbs import enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 1000
with Context(name=get_device_list()[0].name.decode()) as context, PD(context) as pd, CQ(context, 10) as cq, \
        MR(pd, 2 * SIZE, e.IBV_ACCESS_LOCAL_WRITE) as mr:
    with QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(4, 4, 1, 1))) as qp:
        attr = QPAttr(port_num=1)
        attr.dest_qp_num, attr.path_mtu = qp.qp_num, e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = attr.min_rnr_timer = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
        route = GlobalRoute(dgid=context.query_gid(1, 1), sgid_index=1)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        qp.to_rts(attr)
        for i in range(20):
            text = bytes((i + j) % 256 for j in range(SIZE))
            mr.write(text, SIZE)
            qp.post_recv(RecvWR(wr_id=1, num_sge=1, sg=[SGE(mr.buf + SIZE, SIZE, mr.lkey)]))
            qp.post_send(SendWR(wr_id=2, opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(mr.buf, SIZE, mr.lkey)]))
            seen = {}
            while len(seen) < 2:
                for wc in cq.poll(1)[1]:
                    assert wc.status == e.IBV_WC_SUCCESS, wc
                    seen[wc.wr_id] = wc.byte_len
            assert seen[1] == SIZE, seen
            assert mr.read(SIZE, SIZE) == text, i
print('ok')
