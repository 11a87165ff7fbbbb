"""Numbers of a flow's packets that screens, files and collectors show as they stand.

An entry is all about a field of FLOW but its filter. The module loads no numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from probes.tunnels import tunnel_name


class FlowColumn(NamedTuple):
    """A field of FLOW, and its column in every table of flows."""

    name: str
    """The field, and the column in files and settings."""
    title: str
    width: int
    """Cells on a screen, where a user chooses the column."""
    help: str
    """Meaning on a screen."""
    meaning: str
    """Meaning in a file."""
    priority: int = 0
    """As of a column on a screen: 0 is the most important."""
    words: Callable[[int], str] | None = None
    """Return the word for a number; None: the number is shown."""
    given: str = ""
    """The field that is 0 if the number means nothing."""
    is_key: bool = False
    """Whether it tells conversations apart, so that these have it, too."""
    element: tuple[str, int, int, str] | None = None
    """Information element of IPFIX: name, number, bytes, and meaning."""


WITH_PORTS = frozenset({6, 17, 33, 132, 136})
"""Numbers of protocols with ports."""
FLOW_COLUMNS = (
    FlowColumn(
        "vlan", "VLAN", 4, "Id of the outermost VLAN tag.",
        "id of the outermost VLAN tag; 0: no tag", 5, given="vlan", is_key=True,
        element=("vlanId", 58, 2, "of the outermost tag; 0: no tag"),
    ),
    FlowColumn(
        "tunnel", "Tunnel", 6,
        "Kind of the tunnel around the flow, with --tunnels: gre, ipip, vxlan, ...",
        "kind of the tunnel around the flow: gre, vxlan, ...; or empty", 5, words=tunnel_name,
        is_key=True,
    ),
    FlowColumn(
        "tunnel_id", "Tunnel id", 10, "Key of GRE, VNI of VXLAN and Geneve, TEID of GTP.",
        "key of GRE, VNI of VXLAN and Geneve, TEID of GTP; or 0", 5, given="tunnel", is_key=True,
    ),
    FlowColumn(
        "tos", "TOS", 3, "Type of service, or traffic class, of the first packet.",
        "type of service or traffic class of the flow's first packet",
        element=("ipClassOfService", 5, 1, "of the flow's first packet"),
    ),
)  # fmt: skip
