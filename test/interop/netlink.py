#!/usr/bin/python3
"""netlink.py - print the answers of NETLINK_RDMA about a device as JSON

usage: netlink.py DEVICE

The program requests dumps and single objects of the family NLDEV. "rough" is the behaviour of the socket with short
buffers, MSG_PEEK, MSG_TRUNC and invalid requests. The program is the same for the kernel's device and for Verbena's
device."""
import errno, json, os, socket, struct, sys

NETLINK_RDMA, NLDEV = 20, 5
REQUEST, ACK, DUMP = 1, 4, 0x300
DONE, ERROR = 3, 2
COMMANDS = {'get': 1, 'port_get': 5, 'sys_get': 6, 'res_get': 9, 'res_qp': 10, 'res_cm_id': 11, 'res_cq': 12, 'res_mr': 13, 'res_pd': 14,
            'chardev': 15, 'stat_get': 17, 'res_ctx': 22, 'res_srq': 23}
DEV_INDEX, DEV_NAME, PORT_INDEX, PID = 1, 2, 3, 28
CHARDEV_TYPE = 69


def attr(kind, data): return struct.pack('=HH', 4 + len(data), kind) + data + bytes(-len(data) % 4)
def u32(kind, v): return attr(kind, struct.pack('=I', v))


class Socket:
    def __init__(self):
        self.s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_RDMA)
        self.s.bind((0, 0))
        self.s.settimeout(20)
        self.seq = 0

    def send(self, command, flags, payload=b'', family=NLDEV):
        self.seq += 1
        self.s.send(struct.pack('=IHHII', 16 + len(payload), family << 10 | command, REQUEST | flags, self.seq, 0) + payload)

    def messages(self):
        """returns the answer to a request: (type, flags, payload) of each message, and the error, if any"""
        got = []
        while True:
            datagram, _, _, sender = self.s.recvmsg(1 << 20)
            if sender[0] != 0: raise RuntimeError(f'answer from {sender}, want 0')
            while datagram:
                size, kind, flags, seq, pid = struct.unpack_from('=IHHII', datagram)
                if size < 16 or size > len(datagram): raise RuntimeError(f'message of {size} bytes in a datagram of {len(datagram)}')
                if seq != self.seq: raise RuntimeError(f'sequence number: got {seq}, want {self.seq}')
                if pid != self.s.getsockname()[0]: raise RuntimeError(f'port: got {pid}, want {self.s.getsockname()[0]}')
                body, datagram = datagram[16:size], datagram[size + -size % 4:]
                if kind in (DONE, ERROR): return got, -struct.unpack_from('=i', body)[0]
                got.append((kind, flags, body))
                if not flags & 2: return got, 0

    def ask(self, command, flags=0, payload=b'', **more):
        self.send(command, flags, payload, **more)
        return self.messages()



# The attributes with nested attributes. The kernel sets the nested flag only for few of them.
NESTED = {15, 16, 19, 20, 30, 31, 35, 36, 40, 41, 46, 47, 52, 53, 80, 81, 86, 87, 88, 89}


def attrs(b):
    """returns the attributes: [[type, nested, length, value]...]"""
    out = []
    while len(b) >= 4:
        size, kind = struct.unpack_from('=HH', b)
        if size < 4 or size > len(b): raise RuntimeError(f'attribute of {size} bytes in a buffer of {len(b)}')
        data, b = b[4:size], b[size + -size % 4:]
        if kind & 0x8000 or kind in NESTED: out.append([kind & 0x3fff, True, kind >> 15, attrs(data)])
        else: out.append([kind, False, len(data), data.hex()])
    if b: raise RuntimeError(f'{len(b)} bytes after the attributes')
    return out


def name(e): return errno.errorcode.get(e, str(e)) if e else ''


def tell(answer):
    got, err = answer
    return {'error': name(err), 'messages': [{'kind': k, 'flags': f, 'attrs': attrs(b)} for k, f, b in got]}


def rough(index):
    """returns a list of lines that describe the behaviour of the socket"""
    out = []
    def say(*what): out.append(' '.join(str(w) for w in what))
    dev = u32(DEV_INDEX, index)
    def dumped():
        s = Socket()
        s.send(COMMANDS['get'], DUMP)
        return s
    whole = len(dumped().s.recv(1 << 16))
    s = dumped()
    n = len(s.s.recv(1 << 16, socket.MSG_PEEK))
    say('peek gives all', n == whole, 'again', len(s.s.recv(1 << 16, socket.MSG_PEEK)) == n, 'then recv', len(s.s.recv(1 << 16)) == n)
    s = dumped()
    say('peek of 0 with trunc gives the length', s.s.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC) == whole)
    data, _, flags, _ = s.s.recvmsg(20)
    say('short', len(data), 'truncated', bool(flags & socket.MSG_TRUNC))
    done = s.s.recv(1 << 16)
    say('the rest is gone: next is DONE', struct.unpack_from('=H', done, 4)[0] == DONE, len(done))
    s = dumped()
    n = s.s.recv_into(bytearray(20), 20, socket.MSG_TRUNC)
    say('trunc gives the length', n == whole)
    s = Socket()
    s.s.settimeout(None)
    try: say('nothing to read', s.s.recv(100, socket.MSG_DONTWAIT))
    except OSError as e: say('nothing to read', name(e.errno))
    for what, data in (
            ('an empty datagram', b''), ('a byte', b'x'), ('half a header', bytes(8)),
            ('a length below the header', struct.pack('=IHHII', 8, NLDEV << 10 | 1, REQUEST | DUMP, 1, 0)),
            ('a length beyond the end', struct.pack('=IHHII', 64, NLDEV << 10 | 1, REQUEST | DUMP, 1, 0)),
            ('no request', struct.pack('=IHHII', 16, NLDEV << 10 | 1, DUMP, 1, 0)),
            ('no request, acknowledged', struct.pack('=IHHII', 16, NLDEV << 10 | 1, ACK, 1, 0)),
            ('a control message, acknowledged', struct.pack('=IHHII', 16, 1, REQUEST | ACK, 1, 0))):
        s = Socket()
        s.seq = 1
        try: s.s.send(data)
        except OSError as e:
            say(what, 'send:', name(e.errno))
            continue
        s.s.settimeout(0.3)
        try: say(what, tell(s.messages()))
        except socket.timeout: say(what, 'no answer')
    for what, command, flags, payload, more in (
            ('another family', 1, DUMP, b'', {'family': 9}), ('a family without operations', 1, DUMP, b'', {'family': 4}),
            ('command 0', 0, DUMP, b'', {}), ('an unknown command', 200, 0, dev, {}),
            ('get without index', 1, 0, b'', {}), ('get of no device', 1, 0, u32(DEV_INDEX, 9999), {}),
            ('port without port', 5, 0, dev, {}), ('port 0', 5, 0, dev + u32(PORT_INDEX, 0), {}), ('port 2', 5, 0, dev + u32(PORT_INDEX, 2), {}),
            ('ports without device', 5, DUMP, b'', {}), ('ports of no device', 5, DUMP, u32(DEV_INDEX, 9999), {}),
            ('qps without device', 10, DUMP, b'', {}), ('qps of no device', 10, DUMP, u32(DEV_INDEX, 9999), {}),
            ('a qp without number', 10, 0, dev, {}), ('no such qp', 10, 0, dev + u32(21, 0xfffff0), {}),
            ('an mr without number', 13, 0, dev, {}), ('no such mr', 13, 0, dev + u32(62, 0xfffff0), {}),
            ('no such pd', 14, 0, dev + u32(60, 0xfffff0), {}), ('no such cq', 12, 0, dev + u32(61, 0xfffff0), {}),
            ('no such cm_id', 11, 0, dev + u32(63, 0xfffff0), {}), ('no such context', 22, 0, dev + u32(64, 0xfffff0), {}),
            ('a chardev without type', 15, 0, b'', {}), ('an unknown chardev', 15, 0, attr(CHARDEV_TYPE, b'nonsense\0'), {}),
            ('a chardev without end', 15, 0, attr(CHARDEV_TYPE, b'x' * 40), {}),
            ('an index of two bytes', 1, 0, attr(DEV_INDEX, b'xx'), {}), ('an index of eight bytes', 1, 0, attr(DEV_INDEX, bytes(8)), {}),
            ('a name without end', 2, 0, dev + attr(DEV_NAME, b'x' * 64), {}), ('an attribute to come', 1, 0, dev + attr(500, b'xxxx'), {}),
            ('an attribute cut short', 1, 0, dev + struct.pack('=HH', 100, 2), {}), ('three bytes more', 1, 0, dev + b'xxx', {}),
            ('raw qps', 19, DUMP, dev, {}), ('stat without anything', 17, 0, dev, {}), ('stat of port 1', 17, 0, dev + u32(PORT_INDEX, 1), {}),
            ('stat of port 7', 17, 0, dev + u32(PORT_INDEX, 7), {}), ('acknowledged', 1, ACK, dev, {})):
        s = Socket()
        s.s.settimeout(2)
        try: got, err = s.ask(command, flags, payload, **more)
        except socket.timeout: say(what, 'no answer')
        else: say(what, len(got), name(err))
    return out


def main(device):
    s = Socket()
    r = {'get': tell(s.ask(1, DUMP))}
    index = None
    for m in r['get']['messages']:
        a = {t: v for t, _, _, v in m['attrs']}
        if bytes.fromhex(a[DEV_NAME]).rstrip(b'\0').decode() == device: index = struct.unpack('=I', bytes.fromhex(a[DEV_INDEX]))[0]
    dev = u32(DEV_INDEX, index)
    for c, n in COMMANDS.items():
        if c in ('get', 'sys_get', 'chardev'): continue
        r[c] = tell(s.ask(n, DUMP, dev + (u32(PORT_INDEX, 1) if c == 'stat_get' else b'')))
    r['sys_get'] = tell(s.ask(6))
    r['get one'] = tell(s.ask(1, 0, dev))
    r['port one'] = tell(s.ask(5, 0, dev + u32(PORT_INDEX, 1)))
    r['res one'] = tell(s.ask(9, 0, dev))
    r['stat one'] = tell(s.ask(17, 0, dev + u32(PORT_INDEX, 1)))
    for t in 'uverbs', 'rdma_cm', 'umad', 'issm':
        r['chardev ' + t] = tell(s.ask(15, 0, {'uverbs': dev, 'rdma_cm': b''}.get(t, dev + u32(PORT_INDEX, 1)) + attr(CHARDEV_TYPE, t.encode() + b'\0')))
    # Query each object once more by its number.
    for c, number in ('res_qp', 21), ('res_cq', 61), ('res_mr', 62), ('res_pd', 60), ('res_cm_id', 63), ('res_ctx', 64):
        one = []
        for m in r[c]['messages']:
            for _, nested, _, table in m['attrs']:
                if not nested: continue
                for entry in table:
                    n = [bytes.fromhex(v) for t, _, _, v in entry[3] if t == number]
                    if n: one.append(tell(s.ask(COMMANDS[c], 0, dev + attr(number, n[0]))))
        r[c + ' one'] = one
    r['rough'] = rough(index)
    json.dump(r, sys.stdout)


main(sys.argv[1])
