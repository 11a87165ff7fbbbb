"""The doctor's report, read as its user reads it."""

from __future__ import annotations

import io
import re

from app import doctor


class Report:
    """Printed results by the checks' names."""

    def __init__(self, text: str, code: int) -> None:
        self.text, self.code = text, code
        self.status: dict[str, str] = {}
        self.detail: dict[str, str] = {}
        self.remedy: dict[str, str] = {}
        name = ""
        for line in text.splitlines():
            assert len(line) <= 80, line
            if match := re.match(r"  (ok|note|missing|fatal) +(\S.*?)  +(\S.*)$", line):
                status, name, detail = match.groups()
                self.status[name], self.detail[name] = status, detail
            elif line.startswith(" " * 10 + "-> "):
                self.remedy[name] = line.strip().removeprefix("-> ")
            elif line.startswith(" " * 13) and name in self.remedy:
                self.remedy[name] += " " + line.strip()
            elif line.startswith(" " * 28):
                self.detail[name] += " " + line.strip()


def examine(name: str | None = None) -> Report:
    out = io.StringIO()
    code = doctor.run(name, out=out)
    return Report(out.getvalue(), code)
