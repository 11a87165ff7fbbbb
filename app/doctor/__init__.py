"""`probedeck doctor`: checks the requirements of monitoring and names remedies.

Features are tried, never derived from versions. The machine stays as it is.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from typing import TextIO

from app.doctor.device import device
from app.doctor.host import compiler, cost_of, kernel, packet_costs, privileges, try_features
from app.doctor.owners import owner_sources
from bpf.attach import group
from bpf.attach.group import InterfaceGroup
from bpf.errors import KernelError, UsageError
from bpf.requirements import HostCheck, Status

_WIDTH = 80
_DETAIL_COLUMN = 28


def run(
    interface: str | None, policies: str = "", outputs: Iterable[HostCheck] = (),
    out: TextIO = sys.stdout, *, cost: bool = False,
) -> int:  # fmt: skip
    """Print each check when it is complete, and return the exit code.

    `outputs` are checks of outputs. `cost` measures the cost of a packet on the interface. The code
    is 0 if monitoring can run, else 4. Raises UsageError for an unknown interface and for mistakes
    in the file `policies`.
    """
    sections: list[tuple[str, Iterable[HostCheck]]] = [
        ("requirements", privileges()),
        ("kernel", kernel()),
        ("compiler", compiler()),
        ("kernel features", try_features()),
        ("owners of flows", owner_sources()),
    ]
    if interface is not None:
        found = group.find(interface)
        several = isinstance(found, InterfaceGroup)
        sections.append((f"interface{'s' * several} {interface}", device(found)))
        if cost and several:
            raise UsageError("--cost measures one interface", hint="give -i NAME")
        if cost:
            sections.append((f"cost on {interface}", packet_costs(found)))
    if policies:
        sections.append((f"policies {policies}", cost_of(policies)))
    sections.append(("outputs", outputs))
    fatal: list[str] = []
    for title, checks in sections:
        for place, check in enumerate(checks):
            if not place:
                print(title, file=out)
            print(_lines(check), file=out, flush=True)
            if check.status is Status.FATAL:
                fatal.append(check.name)
    if fatal:
        print(_wrap("monitoring can't run here: " + ", ".join(fatal), "", "  "), file=out)
        return KernelError.exit_code
    print("monitoring can run here", file=out)
    return 0


def _lines(check: HostCheck) -> str:
    indent = " " * _DETAIL_COLUMN
    lines = [_wrap(check.detail, f"  {check.status:<8}{check.name:<18}", indent)]
    if check.remedy:
        lines.append(_wrap(check.remedy, " " * 10 + "-> ", " " * 13))
    return "\n".join(lines)


def _wrap(text: str, first: str, rest: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
