// A program in Rust with its own declarations of libibverbs: one queue pair, connected to itself, sends messages.
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

// struct ibv_context_ops. The inline functions of verbs.h call its functions.
#[repr(C)]
struct Ops {
    before_poll: [usize; 11],
    poll_cq: extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    before_send: [usize; 13],
    post_send: extern "C" fn(*mut Qp, *const SendWr, *mut *const SendWr) -> c_int,
    post_recv: extern "C" fn(*mut Qp, *const RecvWr, *mut *const RecvWr) -> c_int,
}

#[repr(C)]
struct Context {
    device: *mut c_void,
    ops: Ops,
}

#[repr(C)]
struct Cq {
    context: *mut Context,
}

#[repr(C)]
struct Qp {
    context: *mut Context,
    pointers: [*mut c_void; 5],
    handle: u32,
    num: u32,
}

#[repr(C)]
struct Mr {
    pointers: [*mut c_void; 3],
    length: usize,
    handle: u32,
    lkey: u32,
    rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct QpCap {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
}

#[repr(C)]
struct QpInitAttr {
    context: *mut c_void,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut c_void,
    cap: QpCap,
    qp_type: u32,
    sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AhAttr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
}

#[repr(C)]
struct QpAttr {
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    cap: QpCap,
    ah: AhAttr,
    alt_ah: AhAttr,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
    align: [u64; 0],
}

#[repr(C)]
struct Sge {
    addr: u64,
    length: u32,
    lkey: u32,
}

#[repr(C)]
struct SendWr {
    wr_id: u64,
    next: *const SendWr,
    sg_list: *const Sge,
    num_sge: c_int,
    opcode: u32,
    send_flags: u32,
    imm: u32,
    unions: [u64; 11],
}

#[repr(C)]
struct RecvWr {
    wr_id: u64,
    next: *const RecvWr,
    sg_list: *const Sge,
    num_sge: c_int,
}

#[repr(C)]
struct Wc {
    wr_id: u64,
    status: u32,
    opcode: u32,
    vendor_err: u32,
    byte_len: u32,
    imm: u32,
    qp_num: u32,
    src_qp: u32,
    flags: u32,
    rest: [u32; 2],
}

#[link(name = "ibverbs")]
extern "C" {
    fn ibv_get_device_list(n: *mut c_int) -> *mut *mut c_void;
    fn ibv_open_device(device: *mut c_void) -> *mut Context;
    fn ibv_close_device(context: *mut Context) -> c_int;
    fn ibv_alloc_pd(context: *mut Context) -> *mut c_void;
    fn ibv_dealloc_pd(pd: *mut c_void) -> c_int;
    fn ibv_reg_mr(pd: *mut c_void, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr;
    fn ibv_dereg_mr(mr: *mut Mr) -> c_int;
    fn ibv_create_cq(context: *mut Context, cqe: c_int, user: *mut c_void, channel: *mut c_void, vector: c_int) -> *mut Cq;
    fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
    fn ibv_create_qp(pd: *mut c_void, attr: *mut QpInitAttr) -> *mut Qp;
    fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
    fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
    fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, gid: *mut [u8; 16]) -> c_int;
}

const SIZE: usize = 1000;

fn main() {
    assert_eq!((size_of::<QpInitAttr>(), size_of::<QpAttr>(), size_of::<AhAttr>()), (64, 144, 32));
    assert_eq!((size_of::<SendWr>(), size_of::<RecvWr>(), size_of::<Wc>()), (128, 32, 48));
    unsafe {
        let list = ibv_get_device_list(null_mut());
        assert!(!list.is_null() && !(*list).is_null());
        let context = ibv_open_device(*list);
        assert!(!context.is_null());
        let pd = ibv_alloc_pd(context);
        assert!(!pd.is_null());
        let mut buf = vec![0u8; 2 * SIZE];
        let at = buf.as_mut_ptr();
        let mr = ibv_reg_mr(pd, at.cast(), buf.len(), 1); // IBV_ACCESS_LOCAL_WRITE
        assert!(!mr.is_null());
        let cq = ibv_create_cq(context, 10, null_mut(), null_mut(), 0);
        assert!(!cq.is_null());
        let mut init = QpInitAttr { send_cq: cq, recv_cq: cq, qp_type: 2, ..zeroed() }; // IBV_QPT_RC
        init.cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let qp = ibv_create_qp(pd, &mut init);
        assert!(!qp.is_null());
        let mut gid = [0u8; 16];
        assert_eq!(ibv_query_gid(context, 1, 1, &mut gid), 0);

        let ah = AhAttr { dgid: gid, sgid_index: 1, hop_limit: 1, is_global: 1, port_num: 1, ..zeroed() };
        let mut attr = QpAttr { qp_state: 1, port_num: 1, ..zeroed() };
        assert_eq!(ibv_modify_qp(qp, &mut attr, 1 | 1 << 3 | 1 << 4 | 1 << 5), 0);
        attr = QpAttr { qp_state: 2, path_mtu: 3, dest_qp_num: (*qp).num, max_dest_rd_atomic: 1, min_rnr_timer: 1, ah, ..zeroed() };
        assert_eq!(ibv_modify_qp(qp, &mut attr, 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20), 0);
        attr = QpAttr { qp_state: 3, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1, ..zeroed() };
        assert_eq!(ibv_modify_qp(qp, &mut attr, 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16), 0);

        let ops = &(*context).ops;
        for round in 0..20u8 {
            for i in 0..SIZE {
                *at.add(i) = round.wrapping_add(i as u8);
            }
            let to = Sge { addr: at.add(SIZE) as u64, length: SIZE as u32, lkey: (*mr).lkey };
            let recv = RecvWr { wr_id: 1, sg_list: &to, num_sge: 1, ..zeroed() };
            let from = Sge { addr: at as u64, length: SIZE as u32, lkey: (*mr).lkey };
            let send = SendWr { wr_id: 2, sg_list: &from, num_sge: 1, opcode: 2, send_flags: 2, ..zeroed() }; // IBV_WR_SEND, signaled
            assert_eq!((ops.post_recv)(qp, &recv, &mut std::ptr::null()), 0);
            assert_eq!((ops.post_send)(qp, &send, &mut std::ptr::null()), 0);
            let mut seen = 0;
            while seen < 2 {
                let mut wc: Wc = zeroed();
                let n = (ops.poll_cq)(cq, 1, &mut wc);
                assert!(n >= 0);
                if n == 1 {
                    assert_eq!((wc.status, wc.qp_num), (0, (*qp).num));
                    assert!(wc.wr_id == 2 || wc.byte_len as usize == SIZE);
                    seen += 1;
                }
            }
            for i in 0..SIZE {
                assert_eq!(*at.add(i), *at.add(SIZE + i));
            }
        }
        assert_eq!((ibv_destroy_qp(qp), ibv_destroy_cq(cq), ibv_dereg_mr(mr)), (0, 0, 0));
        assert_eq!((ibv_dealloc_pd(pd), ibv_close_device(context)), (0, 0));
    }
    println!("ok");
}
