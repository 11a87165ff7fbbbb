"""Names that packets told, on their way to the screens."""

from __future__ import annotations

import numpy as np

from app.console.host_names import Name, NameSource
from probes.names.learned import ROW, SCHEMA
from probes.snapshot import Snapshot
from probes.tables.field_types import MAPPED
from tests.app.console.fake import desk
from tests.app.console.fake_plane import FakePlane

END = 10**12


def table(name: str, *, probe: str = "names") -> Snapshot:
    rows = np.zeros(1, ROW)
    value = rows["value"]
    value["address"][0] = list(MAPPED + bytes([192, 0, 2, 9]))
    value["name"][0, : len(name)] = list(name.encode())
    value["source"], value["ttl"] = 1, 300
    return Snapshot(
        probe, "eth0", 1, 1, END - 10**9, END, 1_767_225_600_000_000_000, rows, {}, 0.0, 0, 0,
        side="ingress", metric="names", schema=SCHEMA,
    )  # fmt: skip


async def test_names_of_packets_are_shown_if_names_are() -> None:
    async with desk() as console:
        for item in (table("www.example"), table("not.example", probe="mine")):
            console.app.hosts.planes.publish("", item)
        assert console.app.names.of("192.0.2.9") is None
        console.app.names.enabled = True
        assert console.app.names.of("192.0.2.9") == Name("www.example", NameSource.TLS)
        await console.still()
        assert not console.complaints


async def test_the_command_begins_and_ends_to_learn() -> None:
    controller = FakePlane()
    async with desk(controller=controller) as console:
        for line in ("names.learn on", "names.learn off", "names.learn"):
            await console.app.action_command(line)
            await console.still()
        asked = [value for name, value in controller.asked if name == "names"]
        assert asked == ["True", "False", "True"]
        await console.app.action_command("names.learn perhaps")
        await console.still()
        assert "perhaps" in console.complaints[-1]
