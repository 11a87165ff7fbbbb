"""Columns of flows that screens, files and collectors show as they stand.

An entry is all about a field of FLOW but its filter, or all about a text of the flow's owner. The
module loads no numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from probes.tunnels import tunnel_name


class FlowColumn(NamedTuple):
    """A field of FLOW or a text of OWNER, and its column in every table of flows."""

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
    owner: str = ""
    """The field of OWNER, if it is a text of the flow's owner."""
    term: str = ""
    """Meaning of its term in filters."""
    examples: tuple[str, ...] = ()
    """Values that the completion of a filter offers."""


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
SCHEMAS = {"flows": 3, "repeated": 1}
"""Numbers of the schemas of the tables with all these columns."""
OWNER_COLUMNS = (
    FlowColumn(
        "process", "Process", 12,
        "Process that holds the connection's socket, and +n for n further ones. In parentheses:"
        " why nobody owns it.",
        "name of the process that owns the flow; empty if unknown, as the next six", 3,
        owner="comm", term="name of the process contains the text", examples=("nginx",),
    ),
    FlowColumn(
        "user", "User", 10, "User of the process.", "its user", 3,
        owner="user", term="name of the process's user contains the text", examples=("root",),
    ),
    FlowColumn(
        "unit", "Unit", 16, "Systemd's unit of the process.", "its unit of systemd", 3,
        owner="unit", term="systemd's unit contains the text", examples=("web.service",),
    ),
    FlowColumn(
        "container", "Container", 14, "Container of the process: the runtime's name, or its id.",
        "its container", 3,
        owner="container", term="name or id of the container contains the text",
    ),
    FlowColumn(
        "pod", "Pod", 14, "Pod of the process: its name or uid.", "its pod", 3,
        owner="pod", term="name or uid of the pod contains the text",
    ),
)  # fmt: skip
"""Texts of the owners of flows."""
