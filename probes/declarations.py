"""What a C source declares, by its syntax tree (S1.14): places for the editor, types for values.

This tells where a map is and how its types are written. Which maps there are, and of what size, is
for the compiler to say: it knows what a macro becomes, and which branch of an `#if` is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bpf.compiler.source import INCLUDES
from probes.syntax import Member, Reader, declaring, tree_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

# What a macro's arguments are, and the kind, key and value of those that have none.
_MACROS = {
    "BPF_TABLE": ("kind key value name", "", "", ""),
    "BPF_F_TABLE": ("kind key value name", "", "", ""),
    "BPF_TABLE_PUBLIC": ("kind key value name", "", "", ""),
    "BPF_TABLE_SHARED": ("kind key value name", "", "", ""),
    "BPF_TABLE_PINNED": ("kind key value name", "", "", ""),
    "BPF_HASH": ("name key value", "hash", "u64", "u64"),
    "BPF_PERCPU_HASH": ("name key value", "percpu_hash", "u64", "u64"),
    "BPF_ARRAY": ("name value", "array", "int", "u64"),
    "BPF_PERCPU_ARRAY": ("name value", "percpu_array", "int", "u64"),
    "BPF_HISTOGRAM": ("name key", "histogram", "int", "u64"),
    "BPF_LPM_TRIE": ("name key value", "lpm_trie", "u64", "u64"),
    "BPF_QUEUE": ("name value", "queue", "", ""),
    "BPF_STACK": ("name value", "stack", "", ""),
    "BPF_QUEUESTACK": ("kind name value", "", "", ""),
    "BPF_QUEUESTACK_PUBLIC": ("kind name value", "", "", ""),
    "BPF_QUEUESTACK_SHARED": ("kind name value", "", "", ""),
    "BPF_QUEUESTACK_PINNED": ("kind name value", "", "", ""),
    "BPF_RINGBUF_OUTPUT": ("name", "ringbuf", "", ""),
    "BPF_PERF_OUTPUT": ("name", "perf_output", "", ""),
    "BPF_PERF_ARRAY": ("name", "perf_array", "int", "u32"),
    "BPF_CGROUP_ARRAY": ("name", "cgroup_array", "int", "u32"),
    "BPF_PROG_ARRAY": ("name", "prog", "u32", "u32"),
    "BPF_STACK_TRACE": ("name", "stacktrace", "int", "struct bpf_stacktrace"),
    "BPF_STACK_TRACE_BUILDID": ("name", "stacktrace", "int", "struct bpf_stacktrace_buildid"),
    "BPF_XDP_REDIRECT_MAP": ("kind value name", "", "u32", ""),
    "BPF_DEVMAP": ("name", "devmap", "u32", "int"),
    "BPF_CPUMAP": ("name", "cpumap", "u32", "u32"),
    "BPF_XSKMAP": ("name", "xskmap", "u32", "int"),
    "BPF_ARRAY_OF_MAPS": ("name", "array_of_maps", "int", "int"),
    "BPF_HASH_OF_MAPS": ("name", "hash_of_maps", "int", "int"),
    "BPF_SOCKMAP": ("name", "sockmap", "u32", "int"),
    "BPF_SOCKHASH": ("name key", "sockhash", "u32", "int"),
    "BPF_SK_STORAGE": ("name value", "sk_storage", "int", ""),
    "BPF_INODE_STORAGE": ("name value", "inode_storage", "int", ""),
    "BPF_TASK_STORAGE": ("name value", "task_storage", "int", ""),
    "BPF_CGROUP_STORAGE": ("name value", "cgroup_storage", "", ""),
    "BPF_PERCPU_CGROUP_STORAGE": ("name value", "percpu_cgroup_storage", "", ""),
}
# Macros that the grammar takes for a type or a name.
_ATTRIBUTES = frozenset(
    {"__always_inline", "__noinline", "__always_unused", "__maybe_unused", "__unused", "__used"}
    | {"__packed", "__aligned", "SEC", "BCC_SEC"}
)
_MARKS = (b"BPF_", *(name.encode() for name in _ATTRIBUTES))
_MAX_ALIASES = 32
_BLANK = bytes(byte if byte == ord("\n") else ord(" ") for byte in range(256))


@dataclass(frozen=True, slots=True)
class MapDeclaration:
    """A map's declaration by one of bcc's macros."""

    name: str
    line: int
    """From 1; 0 where the source does not tell."""
    column: int
    """Of its name, in bytes, from 1, as the compiler counts."""
    macro: str
    """Such as `BPF_HASH`."""
    kind: str
    """bcc's name of the kind, such as `percpu_hash`."""
    key: str
    """C type, as written or by default; empty where the kind has no key."""
    value: str
    """C type; empty where the kind has none."""
    others: tuple[MapDeclaration, ...] = ()
    """Of the same name, in other branches of an `#if`."""


@dataclass(frozen=True, slots=True)
class FunctionDeclaration:
    """A function's definition; a program, unless it is static."""

    name: str
    line: int
    column: int
    static: bool


@dataclass(frozen=True, slots=True)
class Declarations:
    """All that a source declares; both branches of each `#if`."""

    maps: Mapping[str, MapDeclaration] = field(default_factory=dict)
    functions: tuple[FunctionDeclaration, ...] = ()
    records: Mapping[str, tuple[Member, ...]] = field(default_factory=dict)
    """By C type, `struct key` or `union address`; of all definitions one after the other."""
    enums: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Enumerators, by C type: `enum state`."""
    typedefs: Mapping[str, Member] = field(default_factory=dict)
    defines: Mapping[str, str] = field(default_factory=dict)
    """Macros without parameters, as text."""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    start: int
    """Byte in the source."""
    end: int
    place: tuple[int, int]
    """Line and column."""


def parse(source: str, headers: Mapping[str, str] | None = None) -> Declarations:
    """What `source` declares, whatever text it is; with the types of the headers it includes.

    `headers` are generated ones, by name, beside those of bpf/include. In a large text that is no C
    nothing is found.
    """
    return _parse(source, headers or {}, "", set())[0]


def _parse(
    source: str, headers: Mapping[str, str], label: str, included: set[str]
) -> tuple[Declarations, Reader]:
    text = source.encode(errors="replace")
    try:
        tree = tree_of(text)
        calls = _Calls(tree, text).found
        # A macro's arguments are types, which the grammar does not expect there; its way out may
        # swallow what follows. So all else is read from a text that is blank in their place.
        rest = bytearray(text)
        for call in calls:
            start, end = call[0].start, call[-1].end
            rest[start:end] = text[start:end].translate(_BLANK)
        if calls:
            tree = tree_of(bytes(rest))
    except TimeoutError:
        return Declarations(), Reader(b"", label)
    found = declaring(tree)
    reader = Reader(bytes(rest), label)
    for node in found.get("include", ()):
        name = reader.text(node.child_by_field_name("path")).strip('"')
        if name not in included:
            included.add(name)
            reader.add(_parse(_header(name, headers), headers, f"{name}:", included)[1])
    reader.read(found)
    declarations = Declarations(
        _maps(calls, reader.defines),
        tuple(_functions(found.get("function", ()), reader)),
        {name: tuple(members) for name, members in reader.records.items()},
        reader.enums,
        reader.typedefs,
        reader.defines,
    )
    return declarations, reader


def _header(name: str, headers: Mapping[str, str]) -> str:
    """A header's text; empty where there is none."""
    if name in headers:
        return headers[name]
    known = {path.name: path for path in INCLUDES.iterdir()}
    return known[name].read_text(encoding="utf-8") if name in known else ""


class _Calls:
    """The macros that are known, each with its tokens up to the closing parenthesis."""

    def __init__(self, tree: Tree, text: bytes) -> None:
        self.found: list[list[_Token]] = []
        self._text = text
        self._marks = sorted(_places(text), reverse=True)
        self._call: list[_Token] = []
        self._depth = 0
        walk(tree, self._enter)

    def _enter(self, node: Node) -> bool:
        start, end = node.start_byte, node.end_byte
        while self._marks and self._marks[-1] < start:
            self._marks.pop()
        if not self._call and not (self._marks and self._marks[-1] < end):
            return False
        if node.type not in ("comment", "string_literal", "char_literal") and node.child_count:
            return True
        if node.type != "comment":
            row, column = node.start_point
            word = self._text[start:end].decode(errors="replace")
            self._take(_Token(word, start, end, (row + 1, column + 1)))
        return False

    def _take(self, token: _Token) -> None:
        known = token.text in _MACROS or token.text in _ATTRIBUTES
        if self._call and not known and (self._depth or token.text == "("):
            self._call.append(token)
            self._depth += {"(": 1, ")": -1}.get(token.text, 0)
            if self._depth == 0:
                self.found.append(self._call)
                self._call = []
            return
        # A macro without an end is none; an attribute without arguments is one.
        if self._call and self._call[0].text in _ATTRIBUTES and not self._depth:
            self.found.append(self._call)
        self._call, self._depth = [token] if known else [], 0


def _places(text: bytes) -> Iterator[int]:
    for mark in _MARKS:
        at = text.find(mark)
        while at >= 0:
            yield at
            at = text.find(mark, at + 1)


def _maps(calls: Iterable[list[_Token]], defines: Mapping[str, str]) -> dict[str, MapDeclaration]:
    found: dict[str, list[MapDeclaration]] = {}
    for call in calls:
        if call[0].text in _MACROS and (declared := _map(call, defines)):
            found.setdefault(declared.name, []).append(declared)
    return {name: replace(each[0], others=tuple(each[1:])) for name, each in found.items()}


def _map(call: list[_Token], defines: Mapping[str, str]) -> MapDeclaration | None:
    macro = call[0].text
    parameters, kind, key, value = _MACROS[macro]
    given = {
        parameter: argument
        for parameter, argument in zip(parameters.split(), _arguments(call), strict=False)
        if argument
    }
    if "name" not in given:
        return None
    first = given["name"][0]
    if "kind" in given:  # "hash", or "hash" ":" "/sys/fs/bpf/pinned"
        kind = given["kind"][0].text.strip('"').partition(":")[0]
    if "key" in given:
        key = _joined(given["key"])
    if "value" in given:
        value = _joined(given["value"])
    return MapDeclaration(_alias(first.text, defines), *first.place, macro, kind, key, value)


def _arguments(call: list[_Token]) -> Iterator[list[_Token]]:
    """As the preprocessor splits them: braces do not count."""
    argument: list[_Token] = []
    depth = 0
    for token in call[2:-1]:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            yield argument
            argument = []
        else:
            argument.append(token)
    yield argument


def _joined(argument: list[_Token]) -> str:
    return " ".join(token.text for token in argument)


def _alias(name: str, defines: Mapping[str, str]) -> str:
    """What a macro stands for, where it stands for a word."""
    for _ in range(_MAX_ALIASES):
        if name not in defines:
            break
        name = defines[name]
    return name


def _functions(nodes: Iterable[Node], reader: Reader) -> Iterator[FunctionDeclaration]:
    for node in nodes:
        name = node.child_by_field_name("declarator")
        while name is not None and name.type != "identifier":
            name = name.child_by_field_name("declarator")
        if name is not None:
            words = {reader.text(c) for c in node.children if c.type == "storage_class_specifier"}
            row, column = name.start_point
            yield FunctionDeclaration(reader.text(name), row + 1, column + 1, "static" in words)
