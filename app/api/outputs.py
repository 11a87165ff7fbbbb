"""The outputs of another host's controller."""

from __future__ import annotations

from dataclasses import asdict
from urllib.parse import quote

from app.api.client import Transport
from probes.output_control import OutputConfig, OutputStatus


class RemoteOutputs:
    """An `OutputControl` by REST. Every method raises ProbedeckError."""

    def __init__(self, http: Transport) -> None:
        self._http = http

    def status(self) -> tuple[OutputStatus, ...]:
        return self._http.ask(tuple[OutputStatus, ...], "GET", "outputs")

    def add(self, config: OutputConfig) -> OutputStatus:
        return self._http.ask(OutputStatus, "POST", "outputs", json=asdict(config))

    def remove(self, name: str) -> OutputStatus:
        return self._http.ask(OutputStatus, "DELETE", f"outputs/{quote(name, safe='')}")

    def close(self) -> None:
        """The outputs of the controller go on."""
