"""How flows are counted: what an operator chooses. The module loads no numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bpf.attach.attachment import Hook
from bpf.errors import TextError, UsageError
from probes.config.options import setting
from probes.tunnels import Tunnels

if TYPE_CHECKING:
    from probes.flow.filter import FlowFilter

GENERAL, PACKETS = "General", "Packets"
INGRESS: dict[str, Hook | None] = {"auto": None, "xdp": Hook.XDP, "tc": Hook.TC_INGRESS}


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """The flow probe on one interface."""

    interval: float = setting(GENERAL, 1.0, "Length of a window, 0.01 to 300.", "SECONDS")
    """0: only exports end windows."""
    ingress: str = setting(
        PACKETS,
        "auto",
        "Hook that counts incoming packets. auto: native XDP if the driver has it and keeps its "
        "offloads, else TC. xdp: XDP even if generic.",
        "|".join(INGRESS),
    )
    tunnels: str = setting(
        PACKETS,
        "outer",
        "Flows of tunnels (GRE, IP in IP, VXLAN, Geneve, GTP-U). outer: the tunnel's own packet. "
        "inner: the innermost IP packet. both: each packet in both flows; the monitor counts it "
        "once, by the inner one.",
        "|".join(Tunnels),
    )
    capture: str = setting(
        PACKETS,
        "",
        "Count only these flows. Terms: proto: port: sport: dport: net: src: dst: ip:4 ip:6; ! "
        "negates a term.",
        "FILTER",
        usual="all flows",
    )

    @property
    def hook(self) -> Hook | None:
        """The hook that counts incoming packets; None: chosen for the interface."""
        return INGRESS[self.ingress]

    @property
    def filter(self) -> FlowFilter:
        """The counted flows. Raises TextError."""
        from probes.flow.filter import FlowFilter

        return FlowFilter.parse(self.capture)

    def problems(self) -> Iterator[tuple[str, UsageError]]:
        """Yield the mistakes, each with the name of its field."""
        if self.ingress not in INGRESS:
            yield "ingress", UsageError(f"--ingress {self.ingress!r} is not {', '.join(INGRESS)}")
        if self.tunnels not in list(Tunnels):
            yield "tunnels", UsageError(f"--tunnels {self.tunnels!r} is not {', '.join(Tunnels)}")
        # Packet counts of a window have 32 bits: enough for seven minutes at 10 Mpps.
        if not 0.01 <= self.interval <= 300:
            words = f"--interval {self.interval:g} is not between 0.01 and 300 seconds"
            yield "interval", UsageError(words)
        try:
            if self.capture:
                self.filter.to_c()
        except TextError as error:
            yield "capture", error.of("--capture")
