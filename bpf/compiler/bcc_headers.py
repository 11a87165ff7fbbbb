"""bcc's own headers, cut to the declarations that a source needs.

libbcc contains the kernel's bpf.h and its helpers.h, and its three passes parse both at each
compile. They take most of the time of a short source. Functions and structs that a source does not
name, not even through others, can be left out: the programs stay the same.

The compile helper alone loads this module: it imports nothing of probedeck.
"""

from __future__ import annotations

import os
import re

_BEGINS = (b"#ifndef _UAPI__LINUX_BPF_H__", b"#ifndef __BPF_HELPERS_H")
_GUARDS = ("_UAPI__LINUX_BPF_H__", "__BPF_HELPERS_H")
_FILE = "cut.h"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PART = re.compile(
    r"^static[^;{}]*\(\*(\w+)\)\([^;{]*;\n"
    r"|^static [^;{}]*\b(\w+)\s*\([^;{}]*\)\s*\{.*?^\}\n"
    r"|^(?:struct|union) (\w+) \{.*?^\}[^;\n]*;\n",
    re.MULTILINE | re.DOTALL,
)
"""A pointer to a function, a function, or a struct."""
_WORD = re.compile(r"\w+")
_ALWAYS = frozenset(
    ("bpf_map_lookup_elem_", "bpf_map_update_elem_", "bpf_map_delete_elem", "bpf_tail_call_",
     "bpf_perf_event_output", "bpf_probe_read", "bpf_probe_read_kernel", "bpf_trace_printk_")
)  # fmt: skip
"""Functions that bcc's rewriter calls where a source calls others."""
_METHODS = ("bpf_%s", "bpf_map_%s_elem")
"""Functions that it calls for a map's method."""


def library() -> str:
    """Return the path of libbcc in this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return next(line.split(maxsplit=5)[-1].strip() for line in maps if "/libbcc.so" in line)


class BccHeaders:
    """The headers in libbcc; empty if this version of libbcc has others."""

    def __init__(self, library: str, folder: str) -> None:
        """`library` is the path of libbcc. A header for each source is written to `folder`."""
        self._path = os.path.join(folder, _FILE)
        text = ""
        with open(library, "rb") as file:
            data = file.read()
        if all(begin in data for begin in _BEGINS):
            begins = map(data.index, _BEGINS)
            text = "".join(data[at : data.index(b"\0", at)].decode() for at in begins)
        self._pieces: list[tuple[str, str]] = []
        self._words: dict[str, set[str]] = {}
        at, text = 0, _COMMENT.sub("", text)
        for match in _PART.finditer(text):
            name = match[match.lastindex or 0]
            self._pieces += [("", text[at : match.start()]), (name, match[0])]
            self._words.setdefault(name, set()).update(_WORD.findall(match[0]))
            at = match.end()
        self._pieces.append(("", text[at:]))
        rest = (word for _, piece in self._pieces[::2] for word in _WORD.findall(piece))
        self._always = {*rest, *_ALWAYS}

    def flags(self, source: str) -> list[str]:
        """Write the header for a source, and return the flags by which it replaces libbcc's."""
        if not self._words:
            return []
        words = _WORD.findall(source)
        named = {*words, *self._always, *(form % word for word in words for form in _METHODS)}
        kept: set[str] = set()
        while new := (named & self._words.keys()) - kept:
            kept |= new
            named = set().union(*(self._words[name] for name in new))
        with open(self._path, "w", encoding="utf-8") as file:
            file.write("#pragma GCC system_header\n")
            file.writelines(f"#undef {guard}\n" for guard in _GUARDS)
            file.writelines(piece for name, piece in self._pieces if not name or name in kept)
        return [*(f"-D{guard}" for guard in _GUARDS), "-include", self._path]
