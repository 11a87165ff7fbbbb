"""Features of this kernel, this process and a network device, found by trying.

Versions say little: distributions carry features back, and containers take privileges away.
A trial returns if the feature works, and raises the kernel's OSError if not.
"""

from __future__ import annotations

import array
import ctypes as ct
import errno
import fcntl
import functools
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import closing
from enum import IntEnum
from pathlib import Path

from bpf.abi import Batch, BpfCommand, MapFlag, MapType
from bpf.assembler import Assembler, HelperFunction, Register
from bpf.attach.interface import Hook
from bpf.attach.rtnetlink import attribute, attributes, request, text
from bpf.machine import LIBC
from bpf.maps.drain import Drain
from bpf.syscall import (
    MapSpec,
    call,
    enable_run_time_stats,
    map_create,
    map_update,
    opened,
    prog_info,
    prog_load,
)

_VERDICT_PASS = {Hook.XDP: 2, Hook.TC_INGRESS: -1, Hook.TC_EGRESS: -1}

_PR_CAPBSET_READ = 23
_SIOCETHTOOL = 0x8946
_WITHOUT_SPEED = frozenset(("veth", "bridge", "tun", "dummy", "team", "macvlan", "ipvlan"))
"""Drivers that report a speed which does not limit them."""
_ETHTOOL_GSET = 0x01
_ETHTOOL_GDRVINFO = 0x03
_ETHTOOL_GSTRINGS = 0x1B
_ETHTOOL_GSSET_INFO = 0x37
_ETHTOOL_GFEATURES = 0x3A
_ETH_SS_FEATURES = 4
_RECEIVE_OFFLOADS = ("rx-lro", "rx-gro-hw")
_TAKES_TAGS = "rx-vlan-hw-parse"

_NETLINK_GENERIC = 16
_GENL_ID_CTRL = 0x10
_GENL_HEADER = 4
_CTRL_CMD_GETFAMILY, _CTRL_ATTR_FAMILY_ID, _CTRL_ATTR_FAMILY_NAME = 3, 1, 2
_NETDEV_CMD_DEV_GET, _NETDEV_A_DEV_IFINDEX, _NETDEV_A_DEV_XDP_FEATURES = 1, 1, 3
_NETDEV_XDP_ACT_BASIC = 1 << 0


class Capability(IntEnum):
    """Capabilities that monitoring uses, see capabilities(7)."""

    CAP_NET_ADMIN = 12
    CAP_NET_RAW = 13
    CAP_SYS_PTRACE = 19
    CAP_SYS_ADMIN = 21
    CAP_SYS_NICE = 23
    CAP_PERFMON = 38
    CAP_BPF = 39


def capabilities() -> frozenset[Capability]:
    """The capabilities in effect for this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            mask = int(line.split()[1], 16)
    return frozenset(c for c in Capability if mask >> c & 1)


def known_capabilities() -> frozenset[Capability]:
    """The capabilities that this kernel knows; CAP_BPF and CAP_PERFMON are of 5.8.

    prctl(2) tells, because `ProcSubset=pid` of systemd and some containers hide /proc/sys.
    """
    return frozenset(c for c in Capability if LIBC.prctl(_PR_CAPBSET_READ, c, 0, 0, 0) >= 0)


def try_bpf() -> None:
    """Try bpf(2) itself: make a map."""
    os.close(map_create(MapSpec("doctor", MapType.ARRAY, 4, 4, 1)))


def try_memory(size: int) -> None:
    """Make a map of `size` bytes: kernels before 5.11 count maps against RLIMIT_MEMLOCK."""
    line = 64
    spec = MapSpec("doctor", MapType.ARRAY, 4, line, size // line, MapFlag.MMAPABLE)
    os.close(map_create(spec))


def try_ring_buffer() -> None:
    os.close(map_create(MapSpec("doctor", MapType.RINGBUF, 0, 0, mmap.PAGESIZE)))


def try_mmapable_array() -> None:
    spec = MapSpec("doctor", MapType.ARRAY, 4, 8, 1, MapFlag.MMAPABLE)
    with opened(map_create(spec)) as fd:
        mmap.mmap(fd, mmap.PAGESIZE).close()


def try_atomic_exchange() -> None:
    """Load a program that has one: kernel 5.12, and 5.18 on arm64."""
    code = Assembler()
    code.store(Register.FP, -8, 0)
    code.move(Register.R1, 0)
    code.exchange(Register.FP, -8, Register.R1)
    code.exit(0)
    os.close(prog_load(code.assemble(), Hook.TC_EGRESS.prog_type, "doctor"))


def try_coarse_clock() -> None:
    """Load a program that asks for the time of the last tick: kernel 5.11."""
    code = Assembler()
    code.call(HelperFunction.KTIME_GET_COARSE_NS)
    code.exit(0)
    os.close(prog_load(code.assemble(), Hook.TC_EGRESS.prog_type, "doctor"))


@functools.cache
def kernel_macros() -> dict[str, int]:
    """Return the macros of include/kernel.h for this kernel."""

    def works(trial: Callable[[], None]) -> int:
        try:
            trial()
        except PermissionError:
            return 1  # unknown: the next load fails for the same reason, and names it
        except OSError:
            return 0
        return 1

    return {
        "HAS_COARSE_CLOCK": works(try_coarse_clock),
        "HAS_ATOMICS": works(try_atomic_exchange),
    }


def try_batch() -> None:
    """Look up and delete a hash map's entries in one call."""
    with opened(map_create(MapSpec("doctor", MapType.HASH, 4, 4, 8))) as fd:
        map_update(fd, bytes(4), bytes(4))
        token, keys, values = (ct.create_string_buffer(4 * 8) for _ in range(3))
        batch = Batch(
            out_batch=ct.addressof(token),
            keys=ct.addressof(keys),
            values=ct.addressof(values),
            count=8,
            map_fd=fd,
        )
        try:
            call(BpfCommand.MAP_LOOKUP_AND_DELETE_BATCH, batch)
        except OSError as error:
            # ENOENT says that the map's end was reached.
            if error.errno != errno.ENOENT:
                raise


def try_kernel_drain() -> None:
    """Load a program that walks over a map on demand (BPF_PROG_TYPE_SYSCALL)."""
    spec = MapSpec("doctor", MapType.ARRAY, 4, 4, 1)
    with opened(map_create(spec)) as fd, closing(Drain(fd, spec)) as drain:
        drain.erase()


def try_statistics() -> None:
    """Turn run-time statistics of programs on, for a moment."""
    os.close(enable_run_time_stats())


def ask_offload(ifindex: int) -> None:
    """Offload an XDP program to a NIC. Raises the driver's OSError if it refuses."""
    os.close(load_passing(Hook.XDP, ifindex))


def load_passing(hook: Hook, device: int = 0) -> int:
    """Load a program for `hook` that lets every packet pass; returns its file descriptor."""
    code = Assembler()
    code.exit(_VERDICT_PASS[hook])
    return prog_load(code.assemble(), hook.prog_type, "doctor", device=device)


def jit_works() -> bool:
    """Whether the kernel compiles programs (JIT). Raises OSError if no program can be loaded."""
    with opened(load_passing(Hook.XDP)) as fd:
        return prog_info(fd).jited_bytes > 0


def driver(interface: str) -> str:
    """Return the name of an interface's driver, such as `veth`; empty if it has none."""
    try:
        answer = _ethtool(interface, struct.pack("I192x", _ETHTOOL_GDRVINFO))
    except OSError:
        return ""
    return text(answer[4:36])


def link_speed(interface: str) -> int:
    """Return the speed of a link in bits per second; 0 if it is unknown, or has no meaning."""
    try:
        # struct ethtool_cmd: the speed in Mbit/s is in two halves.
        low, high = struct.unpack_from(
            "12xH14xH", _ethtool(interface, struct.pack("I40x", _ETHTOOL_GSET))
        )
    except OSError:
        return 0
    speed: int = high << 16 | low
    unknown = speed in (0, 0xFFFF, 0xFFFFFFFF) or driver(interface) in _WITHOUT_SPEED
    return 0 if unknown else speed * 1_000_000


def receive_offloads(interface: str) -> dict[str, bool]:
    """Return the hardware receive offloads that are on, and whether each can be turned off.

    Names are ethtool's, `rx-lro` and `rx-gro-hw`: drivers may refuse native XDP beside these.
    Raises OSError if the interface does not tell.
    """
    return _features_on(interface, _RECEIVE_OFFLOADS)


def takes_tags(interface: str) -> bool:
    """Whether the NIC takes VLAN tags off received packets. Raises OSError if it does not tell."""
    return bool(_features_on(interface, (_TAKES_TAGS,)))


def _features_on(interface: str, wanted: Iterable[str]) -> dict[str, bool]:
    """Return the device's features that are on, and whether each can be turned off."""
    ask = struct.pack("IIQI", _ETHTOOL_GSSET_INFO, 0, 1 << _ETH_SS_FEATURES, 0)
    (count,) = struct.unpack_from("I", _ethtool(interface, ask), 16)
    ask = struct.pack("III", _ETHTOOL_GSTRINGS, _ETH_SS_FEATURES, count) + bytes(32 * count)
    strings = _ethtool(interface, ask)
    names = [text(strings[at : at + 32]) for at in range(12, 12 + 32 * count, 32)]
    blocks = (count + 31) // 32
    ask = struct.pack("II", _ETHTOOL_GFEATURES, blocks) + bytes(16 * blocks)
    features = _ethtool(interface, ask)
    on = {}
    for name in wanted:
        if name in names:
            block, bit = divmod(names.index(name), 32)
            available, _, active, _ = struct.unpack_from("4I", features, 8 + 16 * block)
            if active >> bit & 1:
                on[name] = bool(available >> bit & 1)
    return on


def native_xdp(ifindex: int) -> bool | None:
    """Whether an interface's driver runs XDP itself; None before kernel 6.3."""
    try:
        family = _generic_netlink(
            _GENL_ID_CTRL, _CTRL_CMD_GETFAMILY, _CTRL_ATTR_FAMILY_NAME, b"netdev\0"
        )
        device = _generic_netlink(
            int.from_bytes(family[_CTRL_ATTR_FAMILY_ID], "little"),
            _NETDEV_CMD_DEV_GET,
            _NETDEV_A_DEV_IFINDEX,
            struct.pack("I", ifindex),
        )
    except OSError:
        return None
    features = int.from_bytes(device[_NETDEV_A_DEV_XDP_FEATURES], "little")
    return bool(features & _NETDEV_XDP_ACT_BASIC)


def _ethtool(interface: str, request: bytes) -> bytes:
    """Run one ethtool command; the answer is as long as the request."""
    data = array.array("B", request)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        address, _ = data.buffer_info()
        fcntl.ioctl(sock, _SIOCETHTOOL, struct.pack("16sP16x", interface.encode()[:15], address))
    return data.tobytes()


def _generic_netlink(family: int, command: int, name: int, value: bytes) -> dict[int, bytes]:
    """Ask with one attribute; return the answer's attributes. Raises OSError if refused."""
    body = struct.pack("BBH", command, 1, 0) + attribute(name, value)
    reply = next(request(_NETLINK_GENERIC, family, body))
    return attributes(reply[_GENL_HEADER:])
