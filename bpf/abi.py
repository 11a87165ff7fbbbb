"""The kernel's ABI of bpf(2): constants, and `union bpf_attr` by command.

Names and layouts are from include/uapi/linux/bpf.h, a stable ABI.
"""

from __future__ import annotations

import ctypes as ct
from enum import IntEnum, IntFlag


class BpfCommand(IntEnum):
    """enum bpf_cmd."""

    MAP_CREATE = 0
    MAP_LOOKUP_ELEM = 1
    MAP_UPDATE_ELEM = 2
    MAP_DELETE_ELEM = 3
    MAP_GET_NEXT_KEY = 4
    PROG_LOAD = 5
    PROG_TEST_RUN = 10
    PROG_GET_NEXT_ID = 11
    PROG_GET_FD_BY_ID = 13
    OBJ_GET_INFO_BY_FD = 15
    PROG_QUERY = 16
    BTF_LOAD = 18
    MAP_LOOKUP_AND_DELETE_ELEM = 21
    MAP_LOOKUP_BATCH = 24
    MAP_LOOKUP_AND_DELETE_BATCH = 25
    MAP_UPDATE_BATCH = 26
    MAP_DELETE_BATCH = 27
    LINK_CREATE = 28
    ENABLE_STATS = 32


class MapType(IntEnum):
    """enum bpf_map_type."""

    HASH = 1
    ARRAY = 2
    PROG_ARRAY = 3
    PERF_EVENT_ARRAY = 4
    PERCPU_HASH = 5
    PERCPU_ARRAY = 6
    STACK_TRACE = 7
    CGROUP_ARRAY = 8
    LRU_HASH = 9
    LRU_PERCPU_HASH = 10
    LPM_TRIE = 11
    ARRAY_OF_MAPS = 12
    HASH_OF_MAPS = 13
    DEVMAP = 14
    SOCKMAP = 15
    CPUMAP = 16
    XSKMAP = 17
    SOCKHASH = 18
    CGROUP_STORAGE = 19
    REUSEPORT_SOCKARRAY = 20
    PERCPU_CGROUP_STORAGE = 21
    QUEUE = 22
    STACK = 23
    SK_STORAGE = 24
    DEVMAP_HASH = 25
    STRUCT_OPS = 26
    RINGBUF = 27
    INODE_STORAGE = 28
    TASK_STORAGE = 29
    BLOOM_FILTER = 30


class MapFlag(IntFlag):
    """BPF_F_* flags of map creation."""

    NO_PREALLOC = 1 << 0
    MMAPABLE = 1 << 10


class ProgType(IntEnum):
    """The part of enum bpf_prog_type that a probe can use."""

    SCHED_CLS = 3
    XDP = 6
    SYSCALL = 31


class AttachType(IntEnum):
    """The part of enum bpf_attach_type that a link can use."""

    XDP = 37
    TCX_INGRESS = 46
    TCX_EGRESS = 47


BEFORE = 1 << 3
"""BPF_F_BEFORE of LINK_CREATE: ahead of the programs that are there already."""


class UpdateFlag(IntEnum):
    """Flags of MAP_UPDATE_ELEM and of the batch commands."""

    ANY = 0
    NOEXIST = 1
    EXIST = 2
    LOCK = 4


SLEEPABLE = 1 << 4
"""BPF_F_SLEEPABLE of PROG_LOAD."""


LIVE_FRAMES = 1 << 1
"""BPF_F_TEST_XDP_LIVE_FRAMES of PROG_TEST_RUN: the frames really travel."""


class MapCreate(ct.Structure):
    _fields_ = [
        ("map_type", ct.c_uint32),
        ("key_size", ct.c_uint32),
        ("value_size", ct.c_uint32),
        ("max_entries", ct.c_uint32),
        ("map_flags", ct.c_uint32),
        ("inner_map_fd", ct.c_uint32),
        ("numa_node", ct.c_uint32),
        ("map_name", ct.c_char * 16),
        ("map_ifindex", ct.c_uint32),
        ("btf_fd", ct.c_uint32),
        ("btf_key_type_id", ct.c_uint32),
        ("btf_value_type_id", ct.c_uint32),
    ]


class MapInfoStruct(ct.Structure):
    _fields_ = [
        ("type", ct.c_uint32),
        ("id", ct.c_uint32),
        ("key_size", ct.c_uint32),
        ("value_size", ct.c_uint32),
        ("max_entries", ct.c_uint32),
        ("map_flags", ct.c_uint32),
        ("name", ct.c_char * 16),
        ("ifindex", ct.c_uint32),
        ("btf_vmlinux_value_type_id", ct.c_uint32),
        ("netns_dev", ct.c_uint64),
        ("netns_ino", ct.c_uint64),
        ("btf_id", ct.c_uint32),
        ("btf_key_type_id", ct.c_uint32),
        ("btf_value_type_id", ct.c_uint32),
    ]


class Element(ct.Structure):
    """Arguments of the commands on one entry; `value` is the next key's place for GET_NEXT_KEY."""

    _fields_ = [
        ("map_fd", ct.c_uint32),
        ("_pad", ct.c_uint32),
        ("key", ct.c_uint64),
        ("value", ct.c_uint64),
        ("flags", ct.c_uint64),
    ]


class Batch(ct.Structure):
    """`struct { in_batch ... } batch`: the caller keeps one and changes it between calls."""

    _fields_ = [
        ("in_batch", ct.c_uint64),
        ("out_batch", ct.c_uint64),
        ("keys", ct.c_uint64),
        ("values", ct.c_uint64),
        ("count", ct.c_uint32),
        ("map_fd", ct.c_uint32),
        ("elem_flags", ct.c_uint64),
        ("flags", ct.c_uint64),
    ]


class ProgLoad(ct.Structure):
    _fields_ = [
        ("prog_type", ct.c_uint32),
        ("insn_cnt", ct.c_uint32),
        ("insns", ct.c_uint64),
        ("license", ct.c_uint64),
        ("log_level", ct.c_uint32),
        ("log_size", ct.c_uint32),
        ("log_buf", ct.c_uint64),
        ("kern_version", ct.c_uint32),
        ("prog_flags", ct.c_uint32),
        ("prog_name", ct.c_char * 16),
        ("prog_ifindex", ct.c_uint32),
        ("expected_attach_type", ct.c_uint32),
        ("prog_btf_fd", ct.c_uint32),
        ("func_info_rec_size", ct.c_uint32),
        ("func_info", ct.c_uint64),
        ("func_info_cnt", ct.c_uint32),
        ("line_info_rec_size", ct.c_uint32),
        ("line_info", ct.c_uint64),
        ("line_info_cnt", ct.c_uint32),
        ("attach_btf_id", ct.c_uint32),
    ]


class ProgTestRun(ct.Structure):
    _fields_ = [
        ("prog_fd", ct.c_uint32),
        ("retval", ct.c_uint32),
        ("data_size_in", ct.c_uint32),
        ("data_size_out", ct.c_uint32),
        ("data_in", ct.c_uint64),
        ("data_out", ct.c_uint64),
        ("repeat", ct.c_uint32),
        ("duration", ct.c_uint32),
        ("ctx_size_in", ct.c_uint32),
        ("ctx_size_out", ct.c_uint32),
        ("ctx_in", ct.c_uint64),
        ("ctx_out", ct.c_uint64),
        ("flags", ct.c_uint32),
        ("cpu", ct.c_uint32),
        ("batch_size", ct.c_uint32),
        ("_pad", ct.c_uint32),
    ]


class LinkCreate(ct.Structure):
    _fields_ = [
        ("prog_fd", ct.c_uint32),
        ("target_ifindex", ct.c_uint32),
        ("attach_type", ct.c_uint32),
        ("flags", ct.c_uint32),
        ("_union", ct.c_uint32 * 8),
    ]


class ProgQuery(ct.Structure):
    _fields_ = [
        ("target_ifindex", ct.c_uint32),
        ("attach_type", ct.c_uint32),
        ("query_flags", ct.c_uint32),
        ("attach_flags", ct.c_uint32),
        ("prog_ids", ct.c_uint64),
        ("count", ct.c_uint32),
        ("_pad", ct.c_uint32),
        ("prog_attach_flags", ct.c_uint64),
        ("link_ids", ct.c_uint64),
        ("link_attach_flags", ct.c_uint64),
        ("revision", ct.c_uint64),
    ]


class InfoByFd(ct.Structure):
    _fields_ = [("bpf_fd", ct.c_uint32), ("info_len", ct.c_uint32), ("info", ct.c_uint64)]


class GetId(ct.Structure):
    _fields_ = [("id", ct.c_uint32), ("next_id", ct.c_uint32), ("open_flags", ct.c_uint32)]


class BtfInfoStruct(ct.Structure):
    """struct bpf_btf_info up to `id`."""

    _fields_ = [("btf", ct.c_uint64), ("btf_size", ct.c_uint32), ("id", ct.c_uint32)]


class BtfLoad(ct.Structure):
    _fields_ = [
        ("btf", ct.c_uint64),
        ("log_buf", ct.c_uint64),
        ("btf_size", ct.c_uint32),
        ("log_size", ct.c_uint32),
        ("log_level", ct.c_uint32),
    ]


class EnableStats(ct.Structure):
    _fields_ = [("type", ct.c_uint32)]


class ProgInfoStruct(ct.Structure):
    """struct bpf_prog_info up to `run_cnt`, kernel 5.1."""

    _fields_ = [
        ("type", ct.c_uint32),
        ("id", ct.c_uint32),
        ("tag", ct.c_uint8 * 8),
        ("jited_prog_len", ct.c_uint32),
        ("xlated_prog_len", ct.c_uint32),
        ("jited_prog_insns", ct.c_uint64),
        ("xlated_prog_insns", ct.c_uint64),
        ("load_time", ct.c_uint64),
        ("created_by_uid", ct.c_uint32),
        ("nr_map_ids", ct.c_uint32),
        ("map_ids", ct.c_uint64),
        ("name", ct.c_char * 16),
        ("ifindex", ct.c_uint32),
        ("gpl_compatible", ct.c_uint32),
        ("netns_dev", ct.c_uint64),
        ("netns_ino", ct.c_uint64),
        ("_jited_ksyms_to_prog_tags", ct.c_uint64 * 11),
        ("run_time_ns", ct.c_uint64),
        ("run_cnt", ct.c_uint64),
    ]
