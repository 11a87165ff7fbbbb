"""Checks of the outputs in the configuration: can each be read, found and reached?"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator

from app.exporters.kinds import ExporterConfig, UrlPlace, parse
from bpf.errors import UsageError
from bpf.requirements import HostCheck, missing, note, ok
from probes.reports import OutputConfig

_PATIENCE_S = 2.0
_NAME_CELLS = 16


def check_outputs(
    outputs: Iterable[OutputConfig], mistakes: Iterable[UsageError] = ()
) -> Iterator[HostCheck]:
    """Check each output; `mistakes` are the ones of the configuration file.

    TCP connects, and sends nothing. UDP sends nothing, so it is only resolved and routed.
    """
    for mistake in mistakes:
        yield missing("configuration", mistake.message, mistake.hint)
    for config in outputs:
        try:
            checked = parse(config)
        except UsageError as error:
            yield missing((config.name or "output")[:_NAME_CELLS], error.message, error.hint)
            continue
        name = (checked.name or checked.kind.scheme)[:_NAME_CELLS]
        if checked.kind.place is UrlPlace.HOST:
            yield _reach(name, checked)
        else:
            yield ok(name, f"{checked.shown}: on this host, and not tried")


def _reach(name: str, checked: ExporterConfig) -> HostCheck:
    transport = getattr(checked.options, "transport", checked.kind.transport)
    kind = socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
    try:
        found = socket.getaddrinfo(checked.host, checked.port, type=kind)
    except OSError as error:
        return missing(name, f"{checked.shown}: cannot resolve {checked.host}: {error.strerror}")
    if transport == "listen":
        return ok(name, f"{checked.shown}: resolves; it listens while probedeck runs")
    why = ""
    for family, _, _, _, address in found:
        with socket.socket(family, kind) as tried:
            tried.settimeout(_PATIENCE_S)
            try:
                tried.connect(address)
            except OSError as error:
                why = error.strerror or str(error)
                continue
        if transport == "udp":
            return note(name, f"{checked.shown}: resolves; UDP does not tell who receives")
        return ok(name, f"{checked.shown}: accepts connections")
    remedy = "start the receiver or mend the URL; a run tries again until it answers"
    return missing(name, f"{checked.shown}: {why}", remedy)
