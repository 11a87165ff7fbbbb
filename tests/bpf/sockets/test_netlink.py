"""Netlink messages of other kernels: shorter, longer and cut off."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bpf.attach.rtnetlink import messages as walk
from bpf.sockets.diag import TCP, decode
from bpf.sockets.netlink import Messages

DONE, ERROR = 3, 2


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(*attributes: bytes, cookie: int = 1, length: int = 0) -> bytes:
    """An answer of sock_diag; `length` is a false length for its header."""
    body = bytes([2, 1, 0, 0]) + bytes(40) + struct.pack("=Q", cookie) + bytes(20)
    body += b"".join(attributes)
    return struct.pack("=IHHII", length or 16 + len(body), 20, 0, 1, 0) + body


def end(code: int = 0, sequence: int = 1) -> bytes:
    return struct.pack("=IHHIIi", 20, DONE, 2, sequence, 0, code)


def messages(*parts: bytes) -> Messages:
    lengths = np.array([len(part) for part in parts], "i8")
    whole = [part + bytes(-len(part) % 4) for part in parts]
    at = np.cumsum([0, *(len(part) // 4 for part in whole[:-1])])
    return Messages(np.frombuffer(b"".join(whole), "<u4"), at.astype("i8"), lengths)


def tcp_info(size: int) -> bytes:
    """tcp_info whose 32-bit word at each offset holds that offset."""
    return np.arange(0, size, 4, dtype="u4").tobytes()


def test_tcp_info_of_all_ages_in_one_dump() -> None:
    sizes = (280, 104, 240, 8, 104, 320, 4)
    _, info = decode(
        messages(*(message(attribute(2, tcp_info(s)), cookie=s + i) for i, s in enumerate(sizes))),
        TCP,
    )
    assert info["info_bytes"].tolist() == list(sizes)
    assert info["cookie"].tolist() == [size + i for i, size in enumerate(sizes)]
    assert info["rtt_us"].tolist() == [68, 68, 68, 0, 68, 68, 0]
    assert info["retransmitted"].tolist() == [100, 100, 100, 0, 100, 100, 0]
    assert info["busy_us"].tolist() == [
        172 << 32 | 168,
        0,
        172 << 32 | 168,
        0,
        0,
        172 << 32 | 168,
        0,
    ]
    assert info["rtos"].tolist() == [240, 0, 0, 0, 0, 240, 0]


def test_attributes_that_are_cut_off_or_false() -> None:
    good = attribute(21, struct.pack("=Q", 7))
    found = messages(
        message(good, b"\x0a\x00"),
        message(b"\x02\x00\x15\x00", good),
        message(struct.pack("=HH", 400, 2), good),
        message(attribute(21, b"short"), attribute(7, bytes(8))),
        message()[:80],
        message(good),
    )
    _, info = decode(found, TCP)
    assert info["cgroup"].tolist() == [7, 0, 0, 0, 7]
    assert not info["info_bytes"].any()
    assert info["found"].all()


def test_nested_attributes() -> None:
    inner = attribute(1, bytes(4)) + attribute(0x8002, attribute(3, bytes(2)))
    (layout,) = messages(message(attribute(0x8009, inner), attribute(5, bytes(1)))).layouts(22)
    assert layout.places == {
        (9,): (23, 20),
        (9, 1): (24, 4),
        (9, 2): (26, 8),
        (9, 2, 3): (27, 2),
        (5,): (29, 1),
    }


def test_the_end_of_a_dump_behind_other_messages() -> None:
    data = message() + message() + end()
    assert list(walk(data)) == [(0, 88, False), (88, 88, False), (176, 20, True)]


def test_an_earlier_dump_is_no_answer() -> None:
    assert list(walk(message() + end(sequence=1), 2)) == []
    assert list(walk(message() + end(-13, sequence=1), 2)) == []


def test_errors_of_a_dump() -> None:
    for kind in (DONE, ERROR):
        told = struct.pack("=IHHIIi", 20, kind, 0, 1, 0, -13)
        with pytest.raises(PermissionError, match="netlink"):
            list(walk(message() + told))


@pytest.mark.parametrize("length", [12, 200])
def test_a_false_length_ends_no_loop_silently(length: int) -> None:
    with pytest.raises(OSError, match="cut off"):
        list(walk(message(length=length)))
