"""The output that scrapers read: one run of a controller's items to a page."""

from __future__ import annotations

import contextlib
import socket
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError

import pytest

from app.exporters.delivery import Outputs
from app.exporters.host import ExportHost, make
from app.exporters.kinds import parse
from app.exporters.openmetrics.exporter import OpenMetricsExporter
from bpf.errors import UsageError
from probes.reports import BudgetUse, MemoryUse, NoOutputs, OutputConfig
from tests.app.exporters.openmetrics.test_prometheus import free_address
from tests.app.exporters.openmetrics.test_series import owners, window
from tests.app.exporters.scraped import OPEN_METRICS, parsed
from tests.support.sight import becomes

PLANE = SimpleNamespace(
    outputs=NoOutputs(), unwritten={}, memory=lambda: MemoryUse(1, 2), read_only="",
    budget=BudgetUse,
    listen=lambda listener: None, publish=lambda item: None, looks_for_owners=lambda: False,
)  # fmt: skip


def made(url: str) -> OpenMetricsExporter:
    host = ExportHost(parse(OutputConfig(url)), cast(Any, PLANE), cast(Any, None), cast(Any, None))
    return cast(OpenMetricsExporter, make(host))


@pytest.fixture
def served() -> Iterator[tuple[OpenMetricsExporter, str]]:
    address = free_address()
    exporter = made(f"openmetrics://{address}?owners=1")
    exporter.open()
    exporter.open()
    with contextlib.closing(exporter):
        yield exporter, address


def page(address: str, path: str = "/metrics") -> str:
    request = urllib.request.Request(f"http://{address}{path}", headers={"accept": OPEN_METRICS})
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        return str(answer.read().decode())


def test_items_become_series(served: tuple[OpenMetricsExporter, str]) -> None:
    exporter, address = served
    for item in (window(1), owners(1, {"a": 2, "b": 1})):
        assert exporter.records(item) == 1
        exporter.deliver(item, 0)
    found = parsed(page(address))
    assert found['probedeck_probe_windows_total{probe="flow"}'] == 1
    assert found["probedeck_map_memory_bytes"] == 1
    assert len([name for name in found if "owner_bytes" in name]) == 2, "owners=1, and the others"
    with pytest.raises(HTTPError, match="404"):
        page(address, "/")


def test_scrapers_that_send_nothing_shut_nobody_out_for_long(
    served: tuple[OpenMetricsExporter, str],
) -> None:
    _, address = served
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
        with pytest.raises(ConnectionError):
            page(address)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return "# EOF" in page(address)
        return False

    assert becomes(answers)


def test_a_port_in_use_is_tried_again() -> None:
    # On this address no connection of another test takes the port meanwhile.
    with socket.create_server(("127.0.0.77", 0)) as taken:
        outputs = Outputs(cast(Any, PLANE))
        outputs.add(OutputConfig(f"openmetrics://127.0.0.77:{taken.getsockname()[1]}"))
        assert becomes(lambda: outputs.status()[0].state == "failing")
        assert outputs.status()[0].reason == "Address already in use"
    assert becomes(lambda: outputs.status()[0].state == "delivering")
    outputs.close()


def test_a_wrong_number_of_owners_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="owners = 5000 is not 0 to 1000"):
        made("openmetrics://127.0.0.1?owners=5000")
