"""The kernel's ABI of bpf(2): constants, and `union bpf_attr` by command.

Names and layouts are from include/uapi/linux/bpf.h, a stable ABI.
"""

from __future__ import annotations

import ctypes as ct
from enum import IntEnum, IntFlag
from typing import Any


class BpfCommand(IntEnum):
    """enum bpf_cmd."""

    MAP_CREATE = 0
    MAP_LOOKUP_ELEM = 1
    MAP_UPDATE_ELEM = 2
    MAP_DELETE_ELEM = 3
    MAP_GET_NEXT_KEY = 4
    PROG_LOAD = 5
    PROG_TEST_RUN = 10
    PROG_GET_FD_BY_ID = 13
    OBJ_GET_INFO_BY_FD = 15
    PROG_QUERY = 16
    RAW_TRACEPOINT_OPEN = 17
    BTF_LOAD = 18
    MAP_LOOKUP_AND_DELETE_ELEM = 21
    MAP_LOOKUP_BATCH = 24
    MAP_LOOKUP_AND_DELETE_BATCH = 25
    MAP_UPDATE_BATCH = 26
    MAP_DELETE_BATCH = 27
    LINK_CREATE = 28
    LINK_UPDATE = 29
    ENABLE_STATS = 32
    ITER_CREATE = 33


MapType = IntEnum(
    "MapType",
    """
    HASH ARRAY PROG_ARRAY PERF_EVENT_ARRAY PERCPU_HASH PERCPU_ARRAY STACK_TRACE CGROUP_ARRAY
    LRU_HASH LRU_PERCPU_HASH LPM_TRIE ARRAY_OF_MAPS HASH_OF_MAPS DEVMAP SOCKMAP CPUMAP XSKMAP
    SOCKHASH CGROUP_STORAGE REUSEPORT_SOCKARRAY PERCPU_CGROUP_STORAGE QUEUE STACK SK_STORAGE
    DEVMAP_HASH STRUCT_OPS RINGBUF INODE_STORAGE TASK_STORAGE BLOOM_FILTER
    """,
)
"""enum bpf_map_type."""


class MapFlag(IntFlag):
    """BPF_F_* flags of map creation."""

    NO_PREALLOC = 1 << 0
    RDONLY_PROG = 1 << 7
    MMAPABLE = 1 << 10


class ProgType(IntEnum):
    """The part of enum bpf_prog_type that a probe can use."""

    SCHED_CLS = 3
    XDP = 6
    CGROUP_SOCK = 9
    SOCK_OPS = 13
    RAW_TRACEPOINT = 17
    CGROUP_SOCK_ADDR = 18
    TRACING = 26
    SYSCALL = 31


class AttachType(IntEnum):
    """The part of enum bpf_attach_type that a link can use."""

    CGROUP_INET_SOCK_CREATE = 2
    CGROUP_SOCK_OPS = 3
    CGROUP_INET4_BIND = 8
    CGROUP_INET6_BIND = 9
    CGROUP_INET4_CONNECT = 10
    CGROUP_INET6_CONNECT = 11
    CGROUP_INET4_POST_BIND = 12
    CGROUP_INET6_POST_BIND = 13
    CGROUP_UDP4_SENDMSG = 14
    CGROUP_UDP6_SENDMSG = 15
    CGROUP_UDP4_RECVMSG = 19
    CGROUP_UDP6_RECVMSG = 20
    TRACE_ITER = 28
    CGROUP_INET_SOCK_RELEASE = 34
    XDP = 37
    TCX_INGRESS = 46
    TCX_EGRESS = 47


BEFORE = 1 << 3
"""BPF_F_BEFORE of LINK_CREATE: ahead of the programs that are there already."""


LOCK = 1 << 2
"""BPF_F_LOCK of the batch commands: under the lock of each value."""

SLEEPABLE = 1 << 4
"""BPF_F_SLEEPABLE of PROG_LOAD."""


LIVE_FRAMES = 1 << 1
"""BPF_F_TEST_XDP_LIVE_FRAMES of PROG_TEST_RUN: the frames really travel."""


_TYPES: dict[str, Any] = {
    "u8": ct.c_uint8,
    "u32": ct.c_uint32,
    "u64": ct.c_uint64,
    "char": ct.c_char,
}


def _layout(*rows: str) -> list[tuple[str, Any]]:
    """Return the fields of a structure; each row is a C type and the names of its fields."""
    fields = []
    for kind, *names in map(str.split, rows):
        scalar, _, count = kind.rstrip("]").partition("[")
        type_ = _TYPES[scalar] * int(count) if count else _TYPES[scalar]
        fields += [(name, type_) for name in names]
    return fields


class MapCreate(ct.Structure):
    _fields_ = _layout(
        "u32 map_type key_size value_size max_entries map_flags inner_map_fd numa_node",
        "char[16] map_name",
        "u32 map_ifindex btf_fd btf_key_type_id btf_value_type_id btf_vmlinux_value_type_id",
        "u64 map_extra",
    )


class MapInfoStruct(ct.Structure):
    _fields_ = _layout(
        "u32 type id key_size value_size max_entries map_flags",
        "char[16] name",
        "u32 ifindex btf_vmlinux_value_type_id",
        "u64 netns_dev netns_ino",
        "u32 btf_id btf_key_type_id btf_value_type_id",
    )


class Element(ct.Structure):
    """Arguments of the commands on one entry; `value` is the next key's place for GET_NEXT_KEY."""

    _fields_ = _layout("u32 map_fd _pad", "u64 key value flags")


class Batch(ct.Structure):
    """`struct { in_batch ... } batch`: the caller keeps one and changes it between calls."""

    _fields_ = _layout(
        "u64 in_batch out_batch keys values",
        "u32 count map_fd",
        "u64 elem_flags flags",
    )


class ProgLoad(ct.Structure):
    _fields_ = _layout(
        "u32 prog_type insn_cnt",
        "u64 insns license",
        "u32 log_level log_size",
        "u64 log_buf",
        "u32 kern_version prog_flags",
        "char[16] prog_name",
        "u32 prog_ifindex expected_attach_type prog_btf_fd func_info_rec_size",
        "u64 func_info",
        "u32 func_info_cnt line_info_rec_size",
        "u64 line_info",
        "u32 line_info_cnt attach_btf_id",
    )


class ProgTestRun(ct.Structure):
    _fields_ = _layout(
        "u32 prog_fd retval data_size_in data_size_out",
        "u64 data_in data_out",
        "u32 repeat duration ctx_size_in ctx_size_out",
        "u64 ctx_in ctx_out",
        "u32 flags cpu batch_size _pad",
    )


class LinkCreate(ct.Structure):
    """`target` is the index of an interface or the descriptor of a cgroup's folder."""

    _fields_ = _layout("u32 prog_fd target attach_type flags", "u32[8] _union")


class LinkUpdate(ct.Structure):
    _fields_ = _layout("u32 link_fd new_prog_fd flags old_prog_fd")


class IterCreate(ct.Structure):
    _fields_ = _layout("u32 link_fd flags")


class RawTracepointOpen(ct.Structure):
    _fields_ = _layout("u64 name", "u32 prog_fd _pad")


class ProgQuery(ct.Structure):
    """`target` as in LinkCreate."""

    _fields_ = _layout(
        "u32 target attach_type query_flags attach_flags",
        "u64 prog_ids",
        "u32 count _pad",
        "u64 prog_attach_flags link_ids link_attach_flags revision",
    )


class InfoByFd(ct.Structure):
    _fields_ = _layout("u32 bpf_fd info_len", "u64 info")


class GetId(ct.Structure):
    _fields_ = _layout("u32 id next_id open_flags")


class BtfInfoStruct(ct.Structure):
    """struct bpf_btf_info up to `id`."""

    _fields_ = _layout("u64 btf", "u32 btf_size id")


class BtfLoad(ct.Structure):
    _fields_ = _layout("u64 btf log_buf", "u32 btf_size log_size log_level")


class EnableStats(ct.Structure):
    _fields_ = _layout("u32 type")


class ProgInfoStruct(ct.Structure):
    """struct bpf_prog_info up to `run_cnt`, kernel 5.1."""

    _fields_ = _layout(
        "u32 type id",
        "u8[8] tag",
        "u32 jited_prog_len xlated_prog_len",
        "u64 jited_prog_insns xlated_prog_insns load_time",
        "u32 created_by_uid nr_map_ids",
        "u64 map_ids",
        "char[16] name",
        "u32 ifindex gpl_compatible",
        "u64 netns_dev netns_ino",
        "u64[11] _jited_ksyms_to_prog_tags",
        "u64 run_time_ns run_cnt",
    )
