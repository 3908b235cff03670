#!/usr/bin/python3
"""peer.py - one side of an interoperation test, which calls verbs on request

usage: peer.py HOST:PORT NAME DEVICE

The program connects to HOST:PORT and sends {"name": NAME}. It answers each line of JSON {"do": METHOD, ...arguments}
with {"ok": RESULT} or {"error": TEXT, "errno": N}. The methods are the methods of class Peer without an underscore. The
program ends when the connection ends. It is the same for the kernel's device and for Verbena's device, and uses RDMA
only through libibverbs (pyverbs)."""
import ctypes, ipaddress, json, os, platform, random, select, signal, socket, struct, subprocess, sys, time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR
from pyverbs.xrcd import XRCD, XRCDInitAttr

PORT = 1
CMD_FD = 264        # in struct ibv_context: cmd_fd, then async_fd
MTU = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}
STATES = {'INIT': e.IBV_QPS_INIT, 'RTR': e.IBV_QPS_RTR, 'RTS': e.IBV_QPS_RTS, 'ERR': e.IBV_QPS_ERR, 'RESET': e.IBV_QPS_RESET}
OPS = {n: getattr(e, 'IBV_WR_' + c) for n, c in {
    'SEND': 'SEND', 'SEND_IMM': 'SEND_WITH_IMM', 'SEND_INV': 'SEND_WITH_INV', 'WRITE': 'RDMA_WRITE',
    'WRITE_IMM': 'RDMA_WRITE_WITH_IMM', 'READ': 'RDMA_READ', 'CMP_SWAP': 'ATOMIC_CMP_AND_SWP',
    'FETCH_ADD': 'ATOMIC_FETCH_AND_ADD', 'LOCAL_INV': 'LOCAL_INV', 'BIND_MW': 'BIND_MW'}.items()}


def bits(prefix, names):
    """returns the sum of the flags with these names"""
    return sum(int(getattr(e, prefix + n)) for n in names)


def name(enum, value, prefix):
    try: return enum(value).name[len(prefix):]
    except ValueError: return str(value)


def words(gid):
    """returns a GID or an IP address in the format of pyverbs"""
    a = ipaddress.ip_address(gid)
    if a.version == 4: a = ipaddress.ip_address('::ffff:' + gid)
    return a.exploded


def pointer_in(obj, size, fits):
    """returns the pointer in a Python object to the C struct with first bytes that fits() accepts"""
    with open('/proc/self/mem', 'rb', buffering=0) as mem:
        raw = ctypes.string_at(id(obj), sys.getsizeof(obj) // 8 * 8)
        for p, in struct.iter_unpack('P', raw):
            try:
                mem.seek(p)
                s = mem.read(size)
            except (OSError, ValueError, OverflowError): continue          # not a pointer
            if len(s) == size and fits(s): return p
    raise RuntimeError(f'{type(obj).__name__}: C struct not found')


class Peer:
    def __init__(self, device):
        self._ctx = Context(name=device)
        self._device = device
        self._pd = PD(self._ctx)
        self._objects, self._next, self._events, self._groups = {}, 1, [], []
        context = pointer_in(self._ctx, CMD_FD + 4, lambda s: struct.unpack_from('i', s, CMD_FD)[0] == self._ctx.cmd_fd)
        self._async_fd = ctypes.c_int.from_address(context + CMD_FD + 4).value

    def _add(self, obj):
        n, self._next = self._next, self._next + 1
        self._objects[n] = obj
        return n

    # the device and the system around it

    def hello(self):
        return {'release': platform.release(), 'caps': self._ctx.query_device_ex().device_cap_flags_ex}

    def _gids(self):
        t = self._ctx.query_gid_table(64)
        return {g.gid_index: ipaddress.ip_address(g.gid_str()).exploded for g in t if g.gid_type == e.IBV_GID_TYPE_ROCE_V2}

    def gid_index(self, gid):
        for i, g in self._gids().items():
            if g == words(gid): return i
        raise KeyError(f'no GID {gid} in the table')

    def counters(self):
        d = f'/sys/class/infiniband/{self._device}/ports/{PORT}/hw_counters'
        def read(n):
            with open(f'{d}/{n}') as f: return int(f.read())
        return {n: read(n) for n in os.listdir(d) if n != 'lifespan'}

    def sh(self, command, timeout=60):
        """runs a shell command and waits for it"""
        p = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           timeout=timeout, text=True)
        return {'status': p.returncode, 'out': p.stdout}

    def start(self, argv):
        """starts a program"""
        return self._add(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                          text=True, start_new_session=True))

    def listening(self, port, timeout):
        """waits until a program listens on the TCP port"""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for f in '/proc/net/tcp', '/proc/net/tcp6':
                with open(f) as t:
                    for l in t:
                        l = l.split()
                        if l[3] == '0A' and l[1].endswith(f':{port:04X}'): return True
            time.sleep(0.02)
        return False

    def end(self, id, timeout):
        """waits until a program exits, and kills it after the timeout"""
        p = self._objects.pop(id)
        try: out, late = p.communicate(timeout=timeout)[0], False
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            out, late = p.communicate()[0], True
        return {'status': p.returncode, 'out': out, 'late': late}

    # objects

    def mr(self, length, access):
        m = MR(self._pd, max(length, 1), bits('IBV_ACCESS_', access))
        return {'id': self._add(m), 'addr': m.buf, 'rkey': m.rkey, 'lkey': m.lkey, 'len': length}

    def mw(self, type):
        m = MW(self._pd, e.IBV_MW_TYPE_1 if type == 1 else e.IBV_MW_TYPE_2)
        return {'id': self._add(m), 'rkey': m.rkey}

    def srq(self, wr, sge=1):
        return {'id': self._add(SRQ(self._pd, SrqInitAttr(SrqAttr(max_wr=wr, max_sge=sge))))}

    def srq_limit(self, srq, limit):
        a = SrqAttr(srq_limit=limit)
        self._objects[srq].modify(a, e.IBV_SRQ_LIMIT)

    def xrcd(self):
        init = XRCDInitAttr(e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS, os.O_CREAT, -1)
        return {'id': self._add(XRCD(self._ctx, init))}

    def qp(self, type, srq=0, wr=64, sge=1, inline=0):
        scq, rcq = CQ(self._ctx, 256), CQ(self._ctx, 256)
        s, r = self._add(scq), self._add(rcq)
        cap = QPCap(max_send_wr=wr, max_recv_wr=0 if srq else wr, max_send_sge=sge, max_recv_sge=0 if srq else sge,
                    max_inline_data=inline)
        init = QPInitAttr(qp_type=getattr(e, 'IBV_QPT_' + type), scq=scq, rcq=rcq, cap=cap, sq_sig_all=0,
                          srq=self._objects[srq] if srq else None)
        q = QP(self._pd, init)
        return {'id': self._add(q), 'qpn': q.qp_num, 'send_cq': s, 'recv_cq': r}

    def connect(self, qp, type, local, remote, qpn=0, psn=0, remote_psn=0, mtu=1024, timeout=18, retry=7, rnr_retry=7,
                min_rnr=12, access=(), qkey=0x11111111, rd_atomic=4, hop_limit=64, traffic_class=0, flow_label=0):
        """changes a queue pair from RESET to RTS"""
        q, a = self._objects[qp], QPAttr(port_num=PORT)
        if type == 'UD': a.qkey = qkey
        else: a.qp_access_flags = bits('IBV_ACCESS_', access)
        q.to_init(a)
        if type != 'UD':
            a.path_mtu, a.dest_qp_num, a.rq_psn = MTU[mtu], qpn, remote_psn
            a.max_dest_rd_atomic, a.min_rnr_timer = rd_atomic, min_rnr
            a.ah_attr = self._ah_attr(local, remote, hop_limit, traffic_class, flow_label)
        q.to_rtr(a)
        a.sq_psn = psn
        if type == 'RC': a.timeout, a.retry_cnt, a.rnr_retry, a.max_rd_atomic = timeout, retry, rnr_retry, rd_atomic
        q.to_rts(a)

    def _ah_attr(self, local, remote, hop_limit, traffic_class, flow_label):
        gr = GlobalRoute(dgid=GID(words(remote)), sgid_index=self.gid_index(local), hop_limit=hop_limit,
                         traffic_class=traffic_class, flow_label=flow_label)
        return AHAttr(gr=gr, is_global=1, port_num=PORT)

    def ah(self, local, remote, hop_limit=64, traffic_class=0, flow_label=0):
        return {'id': self._add(AH(self._pd, attr=self._ah_attr(local, remote, hop_limit, traffic_class, flow_label)))}

    def modify(self, qp, state):
        self._objects[qp].modify(QPAttr(qp_state=STATES[state]), e.IBV_QP_STATE)

    def state(self, qp):
        return name(e.ibv_qp_state, self._objects[qp].query(e.IBV_QP_STATE)[0].qp_state, 'IBV_QPS_')

    def multicast(self, qp, gid, join):
        """attaches a QP to a group, or detaches it; pyverbs has no call for this"""
        lib = ctypes.CDLL('libibverbs.so.1', use_errno=True)
        call = lib.ibv_attach_mcast if join else lib.ibv_detach_mcast
        call.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint16]
        rc = call(self._ibv_qp(self._objects[qp]), ipaddress.ip_address(words(gid)).packed, 0)
        group = (qp, gid)
        if rc == 0 and join: self._groups.append(group)
        elif rc == 0 and group in self._groups: self._groups.remove(group)
        if rc: raise OSError(rc, f'ibv_{"attach" if join else "detach"}_mcast: {os.strerror(rc)}')

    def join(self, group, local):
        """joins the IP multicast group on the interface with the local address"""
        with open(f'/sys/class/infiniband/{self._device}/ports/{PORT}/gid_attrs/ndevs/{self.gid_index(local)}') as f:
            index = socket.if_nametoindex(f.read().strip())
        v6 = ':' in group
        s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
        if v6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, group) + struct.pack('i', index))
        else: s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack('4s4si', socket.inet_aton(group), bytes(4), index))
        self._add(s)

    def _ibv_qp(self, q):
        """returns the address of the struct ibv_qp of a QP"""
        return pointer_in(q, 56, lambda s: struct.unpack('PPPPPPII', s)[7] == q.qp_num)

    def close(self, ids):
        for i in ids: self._objects.pop(i).close()

    def reset(self):
        """closes all objects, the newest first"""
        for q, gid in list(self._groups): self.multicast(q, gid, False)
        for i in sorted(self._objects, reverse=True):
            o = self._objects.pop(i)
            if isinstance(o, subprocess.Popen):
                os.killpg(o.pid, signal.SIGKILL)
                o.communicate()
            else: o.close()
        self._drain_events(0)
        self._events.clear()

    # memory

    def fill(self, mr, off, len, seed):
        """writes the bytes of the seed"""
        if len: self._objects[mr].write(random.Random(seed).randbytes(len), len, off)

    def zero(self, mr, off, len):
        if len: self._objects[mr].write(bytes(len), len, off)

    def check(self, mr, off, len, seed):
        """compares memory with the bytes of the seed, and returns the offset of the first difference, or None"""
        want, got = random.Random(seed).randbytes(len), self._objects[mr].read(len, off) if len else b''
        if want == got: return None
        return next(i for i in range(len) if want[i] != got[i])

    def is_zero(self, mr, off, len):
        return not any(self._objects[mr].read(len, off)) if len else True

    def read(self, mr, off, len):
        return self._objects[mr].read(len, off).hex()

    def set64(self, mr, off, value):
        self._objects[mr].write(struct.pack('=Q', value), 8, off)

    def get64(self, mr, off):
        return struct.unpack('=Q', self._objects[mr].read(8, off))[0]

    # work requests and completions

    def _sges(self, sg):
        return [SGE(self._objects[m].buf + off, n, lkey or self._objects[m].lkey) for m, off, n, lkey in sg]

    def send(self, qp, op, sg=(), wr_id=0, flags=('SIGNALED',), imm=0, rkey=0, addr=0, compare_add=0, swap=0,
             ah=0, qpn=0, qkey=0, mw=0, mr=0, off=0, length=0, access=()):
        """posts a send work request; sg: [MR, offset, length, L_Key or 0]..."""
        sges = self._sges(sg)
        w = SendWR(wr_id=wr_id, opcode=OPS[op], num_sge=len(sges), sg=sges or None, send_flags=bits('IBV_SEND_', flags))
        if op in ('WRITE', 'WRITE_IMM', 'READ'): w.set_wr_rdma(rkey, addr)
        if op in ('CMP_SWAP', 'FETCH_ADD'): w.set_wr_atomic(rkey, addr, compare_add, swap)
        if op in ('SEND_IMM', 'WRITE_IMM'): w.imm_data = socket.htonl(imm)
        if op in ('SEND_INV', 'LOCAL_INV'): w.imm_data = rkey   # imm_data and the key are a union
        if ah: w.set_wr_ud(self._objects[ah], qpn, qkey)
        if op == 'BIND_MW': w.set_bind_wr(self._objects[mw], self._bind_info(mr, off, length, access))
        self._objects[qp].post_send(w)
        return {'rkey': w.rkey if op == 'BIND_MW' else 0}

    def _bind_info(self, mr, off, length, access):
        m = self._objects[mr]
        return MWBindInfo(m, m.buf + off, length, bits('IBV_ACCESS_', access))

    def bind(self, qp, mw, mr, off, length, access, wr_id=0):
        """binds a window of type 1 with ibv_bind_mw"""
        self._objects[qp].bind_mw(self._objects[mw], MWBind(self._bind_info(mr, off, length, access), e.IBV_SEND_SIGNALED, wr_id))
        return {'rkey': self._objects[mw].rkey}

    def recv(self, to, sg, wr_id=0):
        """posts a receive to a QP or an SRQ"""
        sges = self._sges(sg)
        self._objects[to].post_recv(RecvWR(wr_id=wr_id, num_sge=len(sges), sg=sges))

    def poll(self, cq, n, timeout):
        """waits for n completions; returns fewer after the timeout"""
        c, got, end, pause = self._objects[cq], [], time.monotonic() + timeout, 0.0001
        while True:
            num, wcs = c.poll(n - len(got))
            got += [{'wr_id': w.wr_id, 'status': name(e.ibv_wc_status, w.status, 'IBV_WC_'),
                     'op': name(e.ibv_wc_opcode, w.opcode, 'IBV_WC_'), 'len': w.byte_len, 'qpn': w.qp_num,
                     'src_qp': w.src_qp, 'flags': int(w.wc_flags), 'imm': w.imm_data} for w in wcs[:num]]
            if len(got) >= n or time.monotonic() > end: return got
            if not num:
                time.sleep(pause)
                pause = min(pause * 1.5, 0.005)

    def events(self, n, timeout):
        """waits for n asynchronous events since the last reset; returns all of them"""
        end = time.monotonic() + timeout
        while len(self._events) < n and time.monotonic() < end: self._drain_events(min(0.1, timeout))
        return self._events

    def _drain_events(self, timeout):
        fd = self._async_fd
        while select.select([fd], [], [], timeout)[0]:
            ev = self._ctx.get_async_event()
            self._events.append(name(e.ibv_event_type, ev.event_type, 'IBV_EVENT_'))
            ev.ack()
            timeout = 0


def main():
    if len(sys.argv) != 4: sys.exit(__doc__)
    host, _, port = sys.argv[1].rpartition(':')
    peer = Peer(sys.argv[3])
    s = socket.create_connection((host, int(port)), timeout=60)
    s.settimeout(None)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    f = s.makefile('rw', buffering=1)
    print(json.dumps({'name': sys.argv[2]}), file=f, flush=True)
    for line in f:
        r = json.loads(line)
        try:
            do = r.pop('do')
            if do.startswith('_'): raise AttributeError(do)
            answer = {'ok': getattr(peer, do)(**r)}
        except PyverbsRDMAError as ex: answer = {'error': str(ex).strip(), 'errno': ex.error_code or 0}
        except OSError as ex: answer = {'error': str(ex), 'errno': ex.errno or 0}
        except (PyverbsError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, subprocess.TimeoutExpired) as ex:
            answer = {'error': f'{type(ex).__name__}: {ex}', 'errno': 0}
        print(json.dumps(answer), file=f, flush=True)


if __name__ == '__main__': main()
