"""The manual page in roff, man(7), from the help texts and the registry of commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import click

from app.commands.keys import spoken
from app.commands.registry import REGISTRY
from app.console.screens import SCREENS
from app.tape.grammar import EXIT, FORMS
from probes.tables.field_types import FIELD_TYPES, PLAIN, SLOT, SLOT_TYPES

_EXIT_CODES = (
    ("0", "It went well."),
    ("1", "Something failed while it ran; what was collected before is written."),
    ("2", "An option, a configuration, a filter, a tape or a source is wrong."),
    ("3", "An expectation of a tape or of policy test failed, or a tape may not do what it asks."),
    ("4", "A privilege or a kernel feature is missing; see probedeck doctor."),
    ("128+n", "It was ended by signal n."),
)
_FILES = (
    ("$XDG_CONFIG_HOME/probedeck/config.toml", "Settings; see probedeck config init."),
    ("$XDG_STATE_HOME/probedeck/", "History of the prompt, recorded tapes, layouts."),
    ("/run/probedeck/", "The API's socket, and records of programs attached by netlink."),
)


def page(command: Any, version: str) -> str:
    """Return the page of the whole program; `command` is its click command."""
    return "\n".join([*_head(version), *_commands(command), *_keys(), *_tail()]) + "\n"


def _head(version: str) -> Iterator[str]:
    yield f'.TH PROBEDECK 8 "" "probedeck {version}" "System administration"'
    yield from (".SH NAME", r"probedeck \- network monitoring with eBPF")
    yield from (".SH SYNOPSIS", r".B probedeck", r".I command", r"[\fIoptions\fR]")
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
        context = click.Context(command, info_name=name)
        for parameter in command.params:
            record = None if parameter.name == "help" else parameter.get_help_record(context)
            if record is not None:
                yield from _items([(record[0], " ".join(record[1].split()))])
        if command.epilog:
            yield from _paragraphs(command.epilog)


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        each = command.get_command(context, word)
        if each and not each.hidden:
            yield from _leaves(each, f"{name} {word}".strip())


def _keys() -> Iterator[str]:
    yield ".SH CONSOLE"
    yield _text(
        "Each key runs a command. The palette (ctrl+p), the prompt (:), tapes, --exec and the REST "
        "API run the same commands by name."
    )
    for screen in ("", *SCREENS):
        yield f".SS {screen.capitalize() or 'Everywhere'}"
        for each in REGISTRY.values():
            if each.screen == screen:
                keys = f" ({spoken(each.keys)})" if each.keys else ""
                yield from _items([(each.usage + keys, f"{each.title}. {each.help}".rstrip())])


def _tail() -> Iterator[str]:
    yield ".SH TAPES"
    yield _text(
        "A tape is a file of steps, one a line. A step starts when the step before it is complete. "
        f"{EXIT}"
    )
    yield from _items(FORMS)
    yield ".SH FIELD TYPES"
    yield _text(
        "A metric's types say what a field is, by its path: key, value.saddr, value.hops[] (each "
        "element of an array). Without one, the typedefs of its C type say it, then its name."
    )
    yield from _items(
        (name, f"{each.about}; of {each.needs}") for name, each in FIELD_TYPES.items()
    )
    yield from _items([(PLAIN, "As the C type says; the name of the field does not count")])
    yield from _items(
        (name, f"of a histogram's {SLOT}: {what}") for name, what in SLOT_TYPES.items()
    )
    yield ".SH EXIT STATUS"
    yield from _items(_EXIT_CODES)
    yield ".SH FILES"
    yield from _items(_FILES, ".I")
    yield ".SH SEE ALSO"
    yield r".BR bpf (2), \ tc-bpf (8), \ ip-link (8)"


def _items(pairs: Iterable[tuple[str, str]], font: str = ".B") -> Iterator[str]:
    for name, about in pairs:
        yield from (".TP", f"{font} {_text(name)}", _text(about))


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text. As in click, a paragraph after `\\b` keeps its lines."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.strip("\b\n").splitlines()
        if paragraph.startswith("\b"):
            yield from (".PP", ".nf", *map(_text, lines), ".fi")
        else:
            yield from (".PP", _text(" ".join(map(str.strip, lines))))


def _text(text: str) -> str:
    """Return the text, escaped: roff finds no request in it."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return r"\&" + escaped if escaped[:1] in (".", "\\") else escaped
