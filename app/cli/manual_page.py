"""The manual page, made of what `--help` and the registry of commands say: roff, man(7)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click

from app.commands import REGISTRY
from app.commands.keys import spoken
from app.console.screens import SCREENS
from app.tape.syntax_help import EXIT, FORMS
from probes.tables.field_types import FIELD_TYPES, PLAIN, SLOT, SLOT_TYPES

_EXIT_CODES = (
    ("0", "It went well."),
    ("1", "Something failed while it ran; what was collected before is written."),
    ("2", "An option, a configuration, a filter, a tape or a source is wrong."),
    ("3", "An expectation of a tape did not hold, or it may not do what it asks for."),
    ("4", "A privilege or a kernel feature is missing; see probedeck doctor."),
    ("128+n", "It was ended by signal n."),
)


def page(command: Any, version: str) -> str:
    """The page of the whole program; `command` is its click command."""
    return "\n".join([*_head(version), *_commands(command), *_keys(), *_tail()]) + "\n"


def _head(version: str) -> Iterator[str]:
    yield f'.TH PROBEDECK 8 "" "probedeck {version}" "System administration"'
    yield from (".SH NAME", r"probedeck \- network monitoring with eBPF")
    yield ".SH SYNOPSIS"
    yield r".B probedeck"
    yield r".I command"
    yield r"[\fIoptions\fR]"
    yield ".SH DESCRIPTION"
    yield _text(
        "A terminal console that is also a control plane for eBPF network monitoring: flows, "
        "round-trip times of each hop measured with the applications' own packets, policies that "
        "wake applications, and programs that are edited live. It runs in a terminal, without one "
        "into tables, and by tapes of commands."
    )


def _commands(root: Any) -> Iterator[str]:
    yield ".SH COMMANDS"
    for name, command in _leaves(root, ""):
        yield f".SS {_text(name)}"
        yield from _paragraphs(command.help or "")
        # As --help says it.
        context = click.Context(command, info_name=name)
        for parameter in command.params:
            record = None if parameter.name == "help" else parameter.get_help_record(context)
            if record is not None:
                yield from (".TP", f".B {_text(record[0])}", _text(" ".join(record[1].split())))
        if command.epilog:
            yield from _paragraphs(command.epilog)


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Commands that have no more commands below them, by full name."""
    below = getattr(command, "commands", {})
    if not below:
        yield name, command
    for word, each in below.items():
        if not each.hidden:
            yield from _leaves(each, f"{name} {word}".strip())


def _keys() -> Iterator[str]:
    yield ".SH CONSOLE"
    yield _text(
        "Every key is that of a command, which the palette (ctrl+p), the prompt (:), tapes, --exec "
        "and the REST API know by its name."
    )
    for screen in ("", *SCREENS):
        yield f".SS {screen.capitalize() or 'Everywhere'}"
        for each in REGISTRY.values():
            if each.screen == screen:
                yield ".TP"
                keys = f" ({spoken(each.keys)})" if each.keys else ""
                yield f".B {_text(each.usage + keys)}"
                yield _text(f"{each.title}. {each.help}".rstrip())


def _tail() -> Iterator[str]:
    yield ".SH TAPES"
    yield _text(
        "A tape is a file of steps, one a line, that are done one after the other, each when what "
        f"the last one began is done. {EXIT}"
    )
    for step, meaning in FORMS:
        yield from (".TP", f".B {_text(step)}", _text(meaning))
    yield ".SH FIELD TYPES"
    yield _text(
        "A metric's types say what a field is, by its path: key, value.saddr, value.hops[] (each "
        "element of an array). Without one, the typedefs of its C type say it, then its name."
    )
    for name, type_ in FIELD_TYPES.items():
        yield from (".TP", f".B {_text(name)}", _text(f"{type_.about}; of {type_.needs}"))
    yield from (".TP", f".B {PLAIN}", "What the C type says, whatever the name")
    for name, about in SLOT_TYPES.items():
        yield from (".TP", f".B {name}", _text(f"of a histogram's {SLOT}: {about}"))
    yield ".SH EXIT STATUS"
    for code, meaning in _EXIT_CODES:
        yield from (".TP", f".B {code}", _text(meaning))
    yield ".SH FILES"
    for path, what in (
        ("$XDG_CONFIG_HOME/probedeck/config.toml", "Settings; see probedeck config init."),
        ("$XDG_STATE_HOME/probedeck/", "History of the prompt, recorded tapes, layouts."),
        ("/run/probedeck/", "The API's socket, and notes of what was attached by netlink."),
    ):
        yield from (".TP", f".I {_text(path)}", _text(what))
    yield ".SH SEE ALSO"
    yield r".BR bpf (2), \ tc-bpf (8), \ ip-link (8)"


def _paragraphs(text: str) -> Iterator[str]:
    """Help as click has it: a paragraph after `\\b` keeps its lines."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        keeps = paragraph.startswith("\b")
        lines = paragraph.strip("\b\n").splitlines()
        yield ".PP"
        if keeps:
            yield ".nf"
        yield from map(_text, lines if keeps else [" ".join(line.strip() for line in lines)])
        if keeps:
            yield ".fi"


def _text(text: str) -> str:
    """`text` so that roff takes none of it for a request or an escape."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return r"\&" + escaped if escaped[:1] in (".", "\\") else escaped
