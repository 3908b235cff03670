"""Fails in the way that the argument names, on the device rxe0. The test explains the failures."""
import os
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

ALL = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC)


class End:
    """A queue pair with its own context, region and completion queue."""

    def __init__(self, access=ALL, typ=e.IBV_QPT_RC, qp_access=ALL):
        self.ctx = Context(name='rxe0')
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 16)
        self.mr = MR(self.pd, 16384, access)
        self.access = qp_access
        self.qp = QP(self.pd, QPInitAttr(qp_type=typ, scq=self.cq, rcq=self.cq, cap=QPCap(16, 16, 1, 1, 0), sq_sig_all=1))

    @property
    def num(self):
        return self.qp.qp_num

    def gid(self):
        return self.ctx.query_gid(1, 1)

    def connect(self, gid, num, mtu=e.IBV_MTU_1024, dest_reads=1, reads=1, timeout=10, sq_psn=0, rnr=1):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = self.access
        self.qp.to_init(attr)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=1))
        attr.path_mtu, attr.dest_qp_num, attr.max_dest_rd_atomic, attr.min_rnr_timer = mtu, num, dest_reads, 5
        self.qp.to_rtr(attr)
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic, attr.sq_psn = timeout, 3, rnr, reads, sq_psn
        self.qp.to_rts(attr)

    def sge(self, n):
        return SGE(self.mr.buf, n, self.mr.lkey)

    def recv(self, n=64):
        self.qp.post_recv(RecvWR(wr_id=9, num_sge=1, sg=[self.sge(n)]))

    def send(self, n=64, sge=None):
        self.qp.post_send(SendWR(wr_id=1, opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge or self.sge(n)], send_flags=e.IBV_SEND_SIGNALED))

    def rdma(self, opcode, rkey, addr, n=64):
        wr = SendWR(wr_id=1, opcode=opcode, num_sge=1, sg=[self.sge(n)], send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_rdma(rkey, addr)
        self.qp.post_send(wr)

    def error(self):
        """The status of the first completion that is no success."""
        end = time.time() + 20
        while time.time() < end:
            n, wcs = self.cq.poll()
            if n and wcs[0].status != e.IBV_WC_SUCCESS:
                return wcs[0].status
        sys.exit('no completion with an error')


def pair(b=None, **kw):
    """Two connected ends. The keywords are for the first."""
    a, b = End(), b or End()
    a.connect(b.gid(), b.num, **kw)
    b.connect(a.gid(), a.num)
    return a, b


def write(a, b, rkey=None, addr=None, n=64):
    a.rdma(e.IBV_WR_RDMA_WRITE, b.mr.rkey if rkey is None else rkey, b.mr.buf if addr is None else addr, n)


def wrong_rkey():
    a, b = pair()
    write(a, b, rkey=b.mr.rkey ^ 0x55)
    a.error()


def remote_right():
    a, b = pair(End(access=e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ))
    write(a, b)
    a.error()


def no_remote_access():
    a, b = pair(End(access=e.IBV_ACCESS_LOCAL_WRITE))
    write(a, b)
    a.error()


def remote_range():
    a, b = pair()
    write(a, b, addr=b.mr.buf + 16380)
    a.error()


def qp_right():
    a, b = pair(End(qp_access=e.IBV_ACCESS_LOCAL_WRITE))
    write(a, b)
    a.error()


def stale_rkey():
    a, b = pair()
    key, addr = b.mr.rkey, b.mr.buf
    b.mr.close()
    write(a, b, rkey=key, addr=addr)
    a.error()


def psn_ahead():
    a, b = pair(sq_psn=1000)
    b.recv()
    a.send()
    a.error()


def psn_behind():
    a, b = pair(sq_psn=0xffff00)
    b.recv()
    a.send()
    a.error()


def long_message():
    a, b = pair()
    write(a, b, n=0xc0000000)
    a.error()


def short_receive():
    a, b = pair()
    b.recv(16)
    a.send(64)
    a.error()


def no_receive():
    a, _ = pair()
    a.send()
    a.error()


def endless_rnr():
    a, _ = pair(rnr=7)
    a.send()
    time.sleep(2)


def uc_short_receive():
    a, b = End(typ=e.IBV_QPT_UC), End(typ=e.IBV_QPT_UC)
    for x, y in (a, b), (b, a):
        attr = QPAttr(port_num=1)
        x.qp.to_init(attr)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=y.gid(), sgid_index=1))
        attr.path_mtu, attr.dest_qp_num = e.IBV_MTU_1024, y.num
        x.qp.to_rts(attr)
    b.recv(16)
    a.send(64)
    time.sleep(.2)


def local_key():
    a, _ = pair()
    a.send(sge=SGE(a.mr.buf, 64, a.mr.lkey ^ 0x33))
    a.error()


def local_range():
    a, _ = pair()
    a.send(sge=SGE(a.mr.buf + 16380, 64, a.mr.lkey))
    a.error()


def receive_key():
    a, b = pair()
    b.qp.post_recv(RecvWR(wr_id=9, num_sge=1, sg=[SGE(b.mr.buf, 64, b.mr.lkey ^ 0x33)]))
    a.send()
    a.error()


def reads_not_set():
    a, b = pair(reads=0)
    a.rdma(e.IBV_WR_RDMA_READ, b.mr.rkey, b.mr.buf)
    a.error()


def peer_reads_not_set():
    a, b = End(), End()
    a.connect(b.gid(), b.num)
    b.connect(a.gid(), a.num, dest_reads=0)
    a.rdma(e.IBV_WR_RDMA_READ, b.mr.rkey, b.mr.buf)
    a.error()


def mtu_mismatch():
    a, b = pair(mtu=e.IBV_MTU_2048)
    b.recv(16384)
    a.send(8000)
    a.error()


def peer_in_reset():
    a, b = End(), End()
    a.connect(b.gid(), b.num)
    a.send()
    a.error()


def peer_reset():
    a, b = pair()
    b.recv()
    a.send()
    time.sleep(.1)
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    a.send()
    a.error()


def peer_in_error():
    a, b = pair()
    attr = QPAttr(qp_state=e.IBV_QPS_ERR)
    b.qp.modify(attr, e.IBV_QP_STATE)
    a.send()
    a.error()


def peer_failed():
    a, b = pair()
    b.send(sge=SGE(b.mr.buf, 64, b.mr.lkey ^ 0x33))
    b.error()
    a.send()
    a.error()


def peer_closed():
    a, b = pair()
    b.qp.close()
    a.send()
    a.error()


def peer_elsewhere():
    a, b, c = End(), End(), End()
    a.connect(b.gid(), b.num)
    b.connect(c.gid(), c.num)
    a.send()
    a.error()


def peer_process_ends():
    r, w = os.pipe()
    back, forth = os.pipe()
    pid = os.fork()
    if pid == 0:
        b = End()
        os.write(w, b'%10d' % b.num)
        b.connect(b.gid(), int(os.read(back, 10)))
        os.write(w, b'%10d' % 0)
        time.sleep(60)
    a = End()
    num = int(os.read(r, 10))
    os.write(forth, b'%10d' % a.num)
    os.read(r, 10)
    a.connect(a.gid(), num)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    time.sleep(1)  # the service notices the end of a process without a call of it
    a.send()
    a.error()


def peer_executes():
    r, w = os.pipe()
    if os.fork() == 0:
        b = End()
        for fd in os.listdir('/proc/self/fd'):
            try:
                os.set_inheritable(int(fd), True)
            except OSError:
                pass
        back, forth = os.pipe()
        if os.fork() == 0:  # the other end
            a = End()
            os.write(forth, b'%10d' % a.num)
            a.connect(b.gid(), b.num)
            os.read(r, 1)
            time.sleep(.5)
            write(a, b)
            a.error()
            os._exit(0)
        b.connect(b.gid(), int(os.read(back, 10)))
        os.write(w, b'x')
        os.execv('/bin/sleep', ['sleep', '3'])
    os.wait()


def connection(server):
    """A connection to a child that handles the request, or does not handle it, as server says."""
    import pyverbs.cm_enums as ce
    from pyverbs.cmid import CMID, AddrInfo
    port = '18611'
    init = QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(1, 1, 1, 1, 0))
    src = End().gid().gid.split(':')
    addr = '.'.join(str(int(x[i:i + 2], 16)) for x in src[-2:] for i in (0, 2))
    pid = os.fork()
    if pid == 0:
        listener = CMID(creator=AddrInfo(src=addr, src_service=port, port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE),
                        qp_init_attr=init)
        listener.listen(backlog=1)
        server(listener)
        os._exit(0)
    time.sleep(1)
    for _ in range(2):
        if os.fork() == 0:
            try:
                to = AddrInfo(src=None, dst=addr, dst_service=port, port_space=ce.RDMA_PS_TCP)
                CMID(creator=to, qp_init_attr=init).connect()
            finally:
                os._exit(0)
    time.sleep(2)
    os.kill(pid, 9)
    for _ in range(3):
        os.wait()


def request_rejected():
    def server(listener):
        for _ in range(2):
            listener.get_request().reject()
        time.sleep(9)
    connection(server)


def request_destroyed():
    def server(listener):
        for _ in range(2):
            listener.get_request().close()
        time.sleep(9)
    connection(server)


def server_ends():
    def server(listener):
        held = listener.get_request()  # not destroyed before the end
        time.sleep(1)  # Both requests arrive.
        os._exit(held is None)
    connection(server)


def full_backlog():
    connection(lambda listener: time.sleep(9))


def wrong_qp_number():
    a = End()
    a.connect(a.gid(), 0x4242)
    a.send()
    a.error()


def dead_host():
    a = End()
    a.connect(GID('0000:0000:0000:0000:0000:ffff:7f00:0063'), 17)
    a.send()
    a.error()


def full_cq():
    a, b = pair()
    for _ in range(5):
        for _ in range(12):
            write(a, b, n=1)
        time.sleep(.1)
        if len(sys.argv) > 2:
            break
    time.sleep(.2)


def flushed():
    a, _ = pair()
    a.recv()
    a.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    a.error()


def bad_mtu():
    a = End()
    try:
        a.connect(a.gid(), a.num, mtu=9)
    except Exception:
        return
    sys.exit('path MTU 9: got success')


def bad_access():
    a = End()
    try:
        MR(a.pd, 4096, e.IBV_ACCESS_REMOTE_WRITE)
    except Exception:
        return
    sys.exit('remote write without local write: got success')


def datagrams(qkey, n, receive, num=None):
    a, b = End(typ=e.IBV_QPT_UD, access=ALL), End(typ=e.IBV_QPT_UD, access=ALL)
    for x in a, b:
        attr = QPAttr(port_num=1)
        attr.qkey = 0x11111111
        x.qp.to_init(attr)
        x.qp.to_rtr(attr)
        x.qp.to_rts(attr)
    if receive:
        b.recv(receive)
    ah = AH(a.pd, attr=AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=b.gid(), sgid_index=1)))
    wr = SendWR(wr_id=1, opcode=e.IBV_WR_SEND, num_sge=1, sg=[a.sge(n)], send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_ud(ah, num or b.num, qkey)
    a.qp.post_send(wr)
    time.sleep(.2)


def wrong_qkey():
    datagrams(0x22222222, 64, 256)


def datagram_without_receive():
    datagrams(0x11111111, 64, 0)


def short_datagram_receive():
    datagrams(0x11111111, 64, 64)


def datagram_to_no_qp():
    datagrams(0x11111111, 64, 256, num=0x4242)


def opens_device():
    """Opens the device and waits until the test has changed it."""
    ctx = Context(name='rxe0')
    print('ready', flush=True)
    sys.stdin.readline()


def waits():
    """Waits until the test has changed the device, then sends."""
    a, b = pair()
    b.recv()
    print('ready', flush=True)
    sys.stdin.readline()
    a.send()
    a.error()


def waits_in_receive():
    """Waits for the end of a receive."""
    a, b = pair()
    b.recv()
    print('ready', flush=True)
    b.error()


globals()[sys.argv[1]]()
