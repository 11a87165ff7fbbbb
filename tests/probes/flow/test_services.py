"""The port that serves, and the names of services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.flow import services
from probes.flow.services import service_name, service_ports


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """/etc/services of the test; the cached one is forgotten before and after."""
    path = tmp_path / "services"
    path.write_text(
        "# comment\ndomain 53/tcp\ndomain 53/udp\nours 7000/tcp alias # ours\nhigh 45000/tcp\n"
        "broken\nbad x/tcp\nodd 5/unknown\nzero 0/tcp\nfar 70000/tcp\n\xff\xfe 1/tcp\n",
        "latin-1",
    )
    monkeypatch.setattr(services, "_FILE", path)
    caches = (services._names, services._ranks)
    for cache in caches:
        cache.cache_clear()
    yield path
    for cache in caches:
        cache.cache_clear()


def port(protocol: int, near: int, far: int) -> int:
    found = service_ports(np.array([protocol]), np.array([near], ">u2"), np.array([far], ">u2"))
    return int(found[0])


@pytest.mark.parametrize(
    ("protocol", "ports", "serves"),
    [
        (6, (40001, 443), 443),
        (6, (40001, 50001), 40001),  # both unknown: the lower one
        (6, (6000, 7000), 7000),  # known by the file
        (6, (7000, 8443), 8443),  # the list before the file
        (6, (443, 22), 22),  # both of the list
        (6, (45000, 40000), 40000),  # names of clients' ports do not count
        (17, (40001, 51820), 51820),  # but those of the list do
        (17, (5353, 5353), 5353),
        (1, (77, 2048), 0),
        (47, (0, 0), 0),
        (6, (0, 0), 0),
    ],
)
def test_the_port_that_serves_is_the_same_in_both_directions(
    protocol: int, ports: tuple[int, int], serves: int
) -> None:
    assert port(protocol, *ports) == port(protocol, *reversed(ports)) == serves


@given(near=st.integers(0, 65535), far=st.integers(0, 65535), protocol=st.integers(0, 255))
def test_any_ports_have_one_service(near: int, far: int, protocol: int) -> None:
    found = port(protocol, near, far)
    assert found == port(protocol, far, near)
    assert found in ((near, far) if protocol in services.WITH_PORTS else (0,))
    assert service_name(protocol, found)


def test_services_have_names() -> None:
    names = [(6, 443), (17, 443), (17, 53), (6, 7000), (17, 7000), (17, 40001), (6, 45000)]
    assert [service_name(*each) for each in names] == [
        "https", "quic", "dns", "ours", "udp/7000", "udp/40001", "high",
    ]  # fmt: skip
    assert [service_name(number, 0) for number in (1, 47, 99)] == ["icmp", "gre", "99"]


def test_without_the_file_the_list_serves(file: Path) -> None:
    file.unlink()
    assert port(6, 6000, 7000) == 6000
    assert service_name(6, 7000) == "tcp/7000"
    assert service_name(6, 22) == "ssh"
