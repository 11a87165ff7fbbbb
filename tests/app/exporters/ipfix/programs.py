"""Real collectors: nfdump's, pmacct's and goflow2, started and ended by tests."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.sight import becomes

Row = Mapping[str, Any]
Sums = tuple[int, int, int]
"""Records of flows, their packets and bytes."""
_NFACCTD = """
daemonize: false
nfacctd_ip: 127.0.0.1
nfacctd_port: {port}
nfacctd_pipe_size: 8000000
plugins: print[all]
aggregate[all]: src_host,dst_host,src_port,dst_port,proto,tos,vlan,in_iface,out_iface,\
sampling_rate
print_output[all]: json
print_output_file[all]: {directory}/flows.json
print_output_file_append[all]: true
print_refresh_time[all]: 1
print_cache_entries[all]: 8209
plugin_buffer_size: 400
plugin_pipe_size: 10000000
"""


class Collector(NamedTuple):
    """A collector that runs."""

    port: int
    process: subprocess.Popen[bytes]
    directory: Path
    read: Callable[[Path], list[Row]]

    def queued(self) -> tuple[int, int] | None:
        """Return bytes that wait in its socket, and datagrams that found no room there."""
        ending = f"0100007F:{self.port:04X}"
        for line in Path(f"/proc/{self.process.pid}/net/udp").read_text().splitlines():
            fields = line.split()
            if fields[1] == ending:
                return int(fields[4].split(":")[1], 16), int(fields[12])
        return None

    def flows(self, packets: int = 0) -> list[Row]:
        """Wait until it has read everything, end it, and return the flows that it stored.

        A collector of several processes loses what is between them when it ends: it is given time
        for so many `packets`.
        """
        assert becomes(lambda: self.queued() == (0, 0), 10)
        becomes(lambda: sums(self.read(self.directory))[1] >= packets, 5)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(10)
        return self.read(self.directory)


def sums(flows: list[Row]) -> Sums:
    return (
        len(flows),
        sum(flow.get("in_packets", flow.get("packets", 0)) for flow in flows),
        sum(flow.get("in_bytes", flow.get("bytes", 0)) for flow in flows),
    )


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def collector(name: str, directory: Path, port: int = 0) -> Iterator[Collector]:
    """Run a collector of COLLECTORS on 127.0.0.1, in this namespace; skips without it."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    port = port or free_port()
    arguments, read = COLLECTORS[name]
    command = arguments(directory, port)
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    made = Collector(port, process, directory, read)
    try:
        assert becomes(lambda: made.queued() is not None, 10)
        yield made
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _nfcapd(directory: Path, port: int) -> tuple[str, ...]:
    interval, buffer = "3600", "8000000"
    return ("nfcapd", "-p", str(port), "-b", "127.0.0.1", "-w", str(directory), "-t", interval,
            "-B", buffer)  # fmt: skip


def _nfdump(directory: Path) -> list[Row]:
    files = sorted(directory.glob("nfcapd.2*"))
    flows: list[Row] = []
    for file in files:
        command = ("nfdump", "-q", "-r", str(file), "-o", "json")
        ended = subprocess.run(command, capture_output=True, check=True, timeout=20, text=True)
        flows += _values(ended.stdout)
    return flows


def _nfacctd(directory: Path, port: int) -> tuple[str, ...]:
    config = directory / "nfacctd.conf"
    config.write_text(_NFACCTD.format(port=port, directory=directory))
    return ("nfacctd", "-f", str(config))


def _goflow2(directory: Path, port: int) -> tuple[str, ...]:
    return (
        "goflow2", "-listen", f"netflow://127.0.0.1:{port}", "-format", "json", "-addr", "",
        "-transport", "file", "-transport.file", str(directory / "flows.json"),
    )  # fmt: skip


def _json_file(directory: Path) -> list[Row]:
    file = directory / "flows.json"
    return _values(file.read_text()) if file.exists() else []


def _values(text: str) -> list[Row]:
    """Read JSON objects, with or without anything between them."""
    decoder, flows, at = json.JSONDecoder(), [], 0
    while (at := text.find("{", at)) >= 0:
        flow, at = decoder.raw_decode(text, at)
        flows.append(flow)
    return flows


COLLECTORS: Mapping[
    str, tuple[Callable[[Path, int], tuple[str, ...]], Callable[[Path], list[Row]]]
] = {
    "nfcapd": (_nfcapd, _nfdump),
    "nfacctd": (_nfacctd, _json_file),
    "goflow2": (_goflow2, _json_file),
}
