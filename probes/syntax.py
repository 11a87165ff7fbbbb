"""C types and constants, read from a syntax tree (tree-sitter)."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Tree

_TIME_LIMIT_S = 1.0
"""To parse one text: a megabyte of C takes 0.1 s, one of random punctuation 4 s."""
_MAX_DEPTH = 32
"""Of operators and parentheses in a number, and of macros that stand for macros."""
_MAX_NUMBER = 200
"""Characters of a macro that may be a number."""

_OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "|": operator.or_,
    "&": operator.and_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
    "/": operator.floordiv, "%": operator.mod,
}  # fmt: skip
_DECLARING = {
    "struct_specifier": "record",
    "union_specifier": "record",
    "enum_specifier": "enum",
    "type_definition": "typedef",
    "preproc_def": "define",
    "preproc_include": "include",
    "function_definition": "function",
}


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a struct or union, or what a typedef stands for."""

    name: str
    """Empty for an anonymous struct or union, and for a bit field that is only a gap."""
    type: str
    """C type without qualifiers: `struct key`, `u8 *`; `struct @120` for one without a name."""
    dimensions: tuple[int, ...] = ()
    """Of an array; 0 where the number can't be told."""
    bits: int | None = None
    """Width of a bit field."""


@cache
def _language() -> Language:
    # Imported only here: starting the console does not pay for it.
    import tree_sitter
    import tree_sitter_c

    return tree_sitter.Language(tree_sitter_c.language())


def tree_of(text: bytes) -> Tree:
    """The syntax tree of any text; raises TimeoutError."""
    import tree_sitter

    deadline = time.monotonic() + _TIME_LIMIT_S
    parser = tree_sitter.Parser(_language())
    try:
        return parser.parse(
            lambda at, _: text[at:],
            encoding="utf8",
            progress_callback=lambda at, failed: time.monotonic() > deadline,
        )
    except ValueError:
        raise TimeoutError from None


def walk(tree: Tree, enter: Callable[[Node], bool]) -> None:
    """Show every node to `enter`, in order; below it only where `enter` says so."""
    cursor = tree.walk()
    while True:
        node = cursor.node
        if node is not None and enter(node) and cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def declaring(tree: Tree) -> dict[str, list[Node]]:
    """The nodes that declare something: `record`, `enum`, `typedef`, `define`, ...

    A query of tree-sitter's would take hours for a million parentheses.
    """
    found: dict[str, list[Node]] = {}

    def enter(node: Node) -> bool:
        if (what := _DECLARING.get(node.type)) is not None:
            found.setdefault(what, []).append(node)
        return True

    walk(tree, enter)
    return found


class Reader:
    """Reads types and constants from a syntax tree."""

    def __init__(self, source: bytes, label: str) -> None:
        """`label` tells this source's types without a name from other sources'."""
        self.source = source
        self._label = label
        self.records: dict[str, list[Member]] = {}
        self.enums: dict[str, dict[str, int]] = {}
        self.typedefs: dict[str, Member] = {}
        self.defines: dict[str, str] = {}
        self._constants: dict[str, int | None] = {}
        """Enumerators, and macros that have been worked out."""

    def text(self, node: Node | None) -> str:
        if node is None:
            return ""
        return self.source[node.start_byte : node.end_byte].decode(errors="replace")

    def add(self, other: Reader) -> None:
        """Take over the types and constants of a header."""
        self.records |= other.records
        self.enums |= other.enums
        self.typedefs |= other.typedefs
        self.defines |= other.defines
        self._constants |= other._constants

    def read(self, found: Mapping[str, Iterable[Node]]) -> None:
        """Add what `declaring` found in the source."""
        for node in found.get("define", ()):
            name = self.text(node.child_by_field_name("name"))
            self.defines[name] = self.text(node.child_by_field_name("value")).strip()
        for node in found.get("enum", ()):
            if (body := node.child_by_field_name("body")) is not None:
                self.enums.setdefault(self._type(node), {}).update(self._enumerators(body))
        for node in found.get("record", ()):
            if (body := node.child_by_field_name("body")) is not None:
                self.records.setdefault(self._type(node), []).extend(self._members(body))
        for node in found.get("typedef", ()):
            for member in self._declared(node):
                self.typedefs.setdefault(member.name, member)

    def _type(self, node: Node) -> str:
        """A type as a key of `records` and `enums`: one without a name is known by its place."""
        if not node.type.endswith("_specifier") or node.type == "sized_type_specifier":
            return " ".join(self.text(node).split())
        name = self.text(node.child_by_field_name("name")) or f"@{self._label}{node.start_byte}"
        return f"{node.type.removesuffix('_specifier')} {name}"

    def _enumerators(self, body: Node) -> Iterator[tuple[str, int]]:
        following: int | None = 0
        for child in body.children:
            if child.type != "enumerator":
                continue
            name = self.text(child.child_by_field_name("name"))
            if (given := child.child_by_field_name("value")) is not None:
                following = self._number(given, self.source)
            self._constants[name] = following
            if following is not None:
                yield name, following
                following += 1

    def _members(self, body: Node) -> Iterator[Member]:
        waiting = [body]
        while waiting:
            node = waiting.pop()
            if node.type == "field_declaration":
                yield from self._declared(node)
            elif node is body or node.type.startswith("preproc_") or node.type == "ERROR":
                waiting += reversed(node.children)

    def _declared(self, node: Node) -> Iterator[Member]:
        """What a field's declaration or a typedef declares."""
        type_node = node.child_by_field_name("type")
        if type_node is None:
            return
        type_ = self._type(type_node)
        members: list[Member] = []
        for child in node.children_by_field_name("declarator"):
            members.append(self._declarator(child, type_))
            clause = child.next_sibling
            if clause is not None and clause.type == "bitfield_clause":
                width = self._number(clause.named_children[0], self.source)
                members[-1] = replace(members[-1], bits=width)
        yield from members or [Member("", type_)]

    def _declarator(self, node: Node | None, type_: str) -> Member:
        dimensions: tuple[int, ...] = ()
        while node is not None and not node.type.endswith("identifier"):
            if node.type == "array_declarator":
                size = node.child_by_field_name("size")
                number = self._number(size, self.source) if size else None
                dimensions = (number or 0, *dimensions)
            elif node.type in ("pointer_declarator", "function_declarator"):
                type_ = f"{type_.removesuffix(' *')} *"
            inner = node.child_by_field_name("declarator")
            node = inner or next(iter(node.named_children), None)
        return Member(self.text(node), type_, dimensions)

    def _number(self, node: Node, source: bytes, depth: int = 0) -> int | None:
        """The value of a constant expression; None where it is none, or too deep."""
        if depth > _MAX_DEPTH:
            return None
        text = source[node.start_byte : node.end_byte].decode(errors="replace")
        if node.type == "number_literal":
            return _literal(text)
        if node.type == "char_literal":
            return ord(text[1]) if len(text) == 3 else None
        if node.type == "identifier":
            return self._constant(text, depth)
        operands = [self._number(child, source, depth + 1) for child in node.named_children[:2]]
        values = [value for value in operands if value is not None]
        if len(values) != len(operands):
            return None
        if node.type == "parenthesized_expression" and len(values) == 1:
            return values[0]
        sign = node.child_by_field_name("operator")
        symbol = source[sign.start_byte : sign.end_byte].decode() if sign else ""
        if node.type == "unary_expression" and len(values) == 1:
            return {"-": -values[0], "~": ~values[0], "+": values[0]}.get(symbol)
        if node.type == "binary_expression" and len(values) == 2 and symbol in _OPERATORS:
            if not all(abs(value) < 1 << 128 for value in values):
                return None
            if symbol in ("<<", ">>") and not 0 <= values[1] < 128:
                return None
            if symbol in "/%" and values[1] == 0:
                return None
            result: int = _OPERATORS[symbol](*values)
            return result
        return None

    def _constant(self, name: str, depth: int) -> int | None:
        if name not in self._constants:
            self._constants[name] = None  # what stands for itself is no number
            text = self.defines.get(name, "")
            number = _literal(text)
            if number is None and text and len(text) <= _MAX_NUMBER:
                snippet = f"int x = {text};".encode()
                tree = tree_of(snippet)
                whole = tree.root_node.descendant_for_byte_range(8, len(snippet) - 1)
                if whole is not None and whole.end_byte == len(snippet) - 1:
                    number = self._number(whole, snippet, depth + 1)
            self._constants[name] = number
        return self._constants[name]


def _literal(text: str) -> int | None:
    """A C integer."""
    digits = text.rstrip("uUlL").lower()
    octal = digits.startswith("0") and digits.isdecimal()
    try:
        return int(digits, 8 if octal else 0)
    except ValueError:
        return None
