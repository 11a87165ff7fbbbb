"""Trial runs of a packet program on test frames (BPF_PROG_TEST_RUN): verdicts and cost."""

from __future__ import annotations

import functools

from bpf.abi import ProgType
from bpf.programs.program import VERDICT_PASS, pack
from bpf.syscall import enable_run_time_stats, opened, prog_info, prog_load, prog_test_run

_ETHERNET = bytes.fromhex("020000000001020000000002")
_TCP = bytes.fromhex("9c4001bb00000001000000005002200000000000")
_UDP = bytes.fromhex("9c4000350014000068656c6c6f2c20776f726c64")
_IPV4 = "45000028000040004006000" + "0c0000201c6336401"
FRAMES = {
    "IPv4 TCP SYN": _ETHERNET + bytes.fromhex("0800" + _IPV4) + _TCP + bytes(6),
    "IPv4 UDP": _ETHERNET + bytes.fromhex("0800" + _IPV4.replace("4006", "4011")) + _UDP + bytes(6),
    "IPv6 TCP SYN": _ETHERNET
    + bytes.fromhex("86dd6000000000140640" + "20010db8" + "00" * 11 + "01" + "20010db8" + "00" * 11)
    + b"\x02"
    + _TCP,
    "ARP": _ETHERNET + bytes.fromhex("08060001080006040001") + bytes(38),
}
"""Test frames by name, of 60 bytes and more, with documentation addresses."""
_ENDS = {
    ProgType.XDP: {0: "XDP_ABORTED", 1: "XDP_DROP", 3: "XDP_TX", 4: "XDP_REDIRECT"},
    ProgType.SCHED_CLS: {
        2: "TC_ACT_SHOT",
        4: "TC_ACT_STOLEN",
        5: "TC_ACT_QUEUED",
        7: "TC_ACT_REDIRECT",
        8: "TC_ACT_TRAP",
    },
}
"""Verdicts that end a packet's way."""
_CLONE_REDIRECT = 13
_WARM = 3
_RUN_NS = 3_000_000
_MAX_REPEAT = 50_000


def is_harmless(instructions: bytes) -> bool:
    """Whether a test run has no effect outside: bpf_clone_redirect really sends."""
    return not any(
        instructions[at] == 0x85
        and instructions[at + 1] == 0
        and int.from_bytes(instructions[at + 4 : at + 8], "little") == _CLONE_REDIRECT
        for at in range(0, len(instructions), 8)
    )


def verdicts(prog_fd: int) -> dict[str, int]:
    """Return a harmless program's verdict on each frame, by the frame's name; signed.

    The program writes its maps. Raises OSError if the kernel can't run it on test frames.
    """
    said = {name: prog_test_run(prog_fd, frame).verdict for name, frame in FRAMES.items()}
    return {name: value - (1 << 32) if value >> 31 else value for name, value in said.items()}


def ending(prog_type: ProgType, verdict: int) -> str:
    """Return the name of a verdict that ends a packet's way; empty if the packet goes on."""
    if prog_type is ProgType.XDP and verdict not in (2, *_ENDS[prog_type]):
        return f"XDP_ABORTED, for {verdict}"
    return _ENDS.get(prog_type, {}).get(verdict, "")


def cost(prog_fd: int, prog_type: ProgType) -> float:
    """Return the nanoseconds of a harmless program for a TCP SYN, above an empty program.

    Otherwise as `verdicts`.
    """
    return max(0.0, _ns(prog_fd) - floor_ns(prog_type))


def _ns(prog_fd: int) -> float:
    frame = FRAMES["IPv4 TCP SYN"]
    once = min(prog_test_run(prog_fd, frame).duration_ns for _ in range(_WARM))
    # In one call: to repeat an XDP program the kernel patches its dispatcher, 10 ms each time.
    repeat = max(2, min(_MAX_REPEAT, _RUN_NS // max(once, 1)))
    return prog_test_run(prog_fd, frame, repeat=repeat).duration_ns


@functools.cache
def floor_ns(prog_type: ProgType, *, by_statistics: bool = False) -> float:
    """Return the nanoseconds of an empty program: by the clock of test runs, or by the kernel's
    run-time statistics, which look at a clock twice for each packet. Raises OSError."""
    code = pack([(0xB7, 0x00, 0, VERDICT_PASS[prog_type]), (0x95, 0x00, 0, 0)])
    with opened(prog_load(code, prog_type, "floor")) as fd:
        if not by_statistics:
            return _ns(fd)
        with opened(enable_run_time_stats()):
            prog_test_run(fd, FRAMES["IPv4 TCP SYN"], repeat=_MAX_REPEAT)
        info = prog_info(fd)
        return info.run_time_ns / max(info.run_count, 1)
