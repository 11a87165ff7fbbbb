"""The packet ring on a veth: frames that really travel, with their lengths and contents."""

from __future__ import annotations

import io
import socket
from collections import Counter

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether

from app.lab.capture import CaptureFile
from app.lab.netns import inside
from app.recording.captures import encoded
from bpf.attach.attachment import Hook
from probes.ring.options import RingOptions
from probes.ring.service import Capture
from probes.snapshot import History
from tests.probes.conftest import compiler as compiler
from tests.probes.deck import Deck
from tests.probes.deck import deck as deck
from tests.probes.flow.pod_host import ip
from tests.support.veth import End

_PORT, _UDP_SEGMENT = 9, 103


def send(sender: End, address: str, data: bytes, segment: int = 0) -> None:
    """Send a datagram, or with `segment` a large one that becomes datagrams of so many bytes."""
    with inside(sender.ns), socket.socket(type=socket.SOCK_DGRAM) as outbox:
        outbox.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, segment)
        outbox.sendto(data, (address, _PORT))


def send_frame(sender: End, frame: Ether) -> None:
    with inside(sender.ns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as outbox:
        outbox.bind((sender.ifname, 0))
        outbox.send(bytes(frame))


@pytest.mark.parametrize(
    ("interface", "hook"),
    [("right", Hook.XDP), ("right", Hook.TC_INGRESS), ("any", None)],
    ids=["xdp", "tc", "any"],
)
def test_frames_on_the_wire(deck: Deck, interface: str, hook: Hook | None) -> None:
    found: list[Capture] = []

    def save(capture: Capture) -> str:
        found.append(capture)
        return ""

    plane = deck.controller
    plane.packets.options, plane.packets.save = RingOptions("1MiB", tunnels=True), save
    plane._hooks.ingress = hook
    plane.paths.configure(interface, plane.path_options)
    for end in (deck.left, deck.right):
        ip(end.ns, f"link set {end.ifname} mtu 3000")
    plane.keep_packets(f"udp dport:{_PORT}")
    for sender, receiver in ((deck.left, deck.right), (deck.right, deck.left)):
        send(sender, receiver.ipv4, b"tiny")
        send(sender, receiver.ipv4, b"jumbo".ljust(2000))
        send(sender, receiver.ipv4, b"large".ljust(1000) * 5, 1000)
        around = IP(src=sender.ipv4, dst=receiver.ipv4)
        inner = around / UDP(dport=_PORT) / b"inside"
        send_frame(sender, Ether(dst="ff:ff:ff:ff:ff:ff") / Dot1Q(vlan=5) / inner)
        send_frame(sender, Ether(dst="ff:ff:ff:ff:ff:ff") / around / inner)
    assert plane.write_packets().ledger.missing == 0
    modes = [each.mode for each in plane.hook_status() if each.hook == "xdp"]
    assert modes == ["native"] * (hook is Hook.XDP)
    (capture,) = found
    file = io.BytesIO(b"".join(encoded(capture, History())))
    frames: Counter[tuple[int, int, str, str]] = Counter()
    for each in CaptureFile(file, "test"):
        packet = Ether(each.data)
        assert Dot1Q not in packet or packet.vlan == 5
        layers = " ".join(layer.__name__ for layer in packet.layers()[1:-2])
        text = packet[UDP].load.split()[0].decode()
        frames[each.length, len(each.data), layers, text] += 1
    # Native XDP sees the packets of a large segment one by one.
    split = hook is Hook.XDP
    assert frames == {
        (46, 46, "IP", "tiny"): 2,
        (2042, 168, "IP", "jumbo"): 2,
        (5042, 168, "IP", "large"): 2 - split,
        **({(1042, 168, "IP", "large"): 5} if split else {}),
        (52, 52, "Dot1Q IP", "inside"): 2,
        (68, 68, "IP IP", "inside"): 2,
    }
    segments = capture.packets.slots["packets"].tolist()
    assert sorted(segments) == [1] * (13 if split else 8) + [5] * (2 - split)
