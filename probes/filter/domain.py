"""Filters for one kind of rows: terms bound to the fields of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bpf.arrays import Array
from bpf.errors import TextError, did_you_mean, placed
from probes.filter.conjunction import Conjunction
from probes.filter.fields import Field, Test, Value
from probes.filter.syntax import Joined, Node, Term, tree
from probes.filter.table import RowTable

NONE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Domain:
    """A kind of rows, and its fields."""

    rows: str
    """The operator's name of the rows: `flows`."""
    fields: Mapping[str, Field]
    """By name; a field may have several names, the usual one first."""
    bare: tuple[str, ...] = ()
    """Fields of a bare word: the first one that accepts it."""
    text: str = ""
    """Field of a bare pattern or quotation."""

    def test(self, term: Term) -> tuple[Test, ...]:
        """Tests for the values of a term. Raises TextError."""
        if not term.field:
            return tuple(map(self._bare, term.values))
        found = self.fields.get(term.field.lower())
        if found is None:
            hint = did_you_mean(term.field.lower(), self.fields)
            raise TextError(f"{self.rows} have no {term.field!r}", "", term.column, hint=hint)
        return tuple(found.test(term.operator, value) for value in term.values)

    def _bare(self, value: Value) -> Test:
        words = _words(self, self.bare)
        word = value.text.lower() if value.kind == "word" else ""
        # `icmp` is a field and a protocol.
        if word not in words and (known := self.fields.get(word)):
            usual = next(iter(known.words), "")
            hint = f"write {word}:{usual}" if usual else ""
            raise value.wrong(f"{value.text!r} has no value", hint)
        fields = self.bare if value.kind == "word" else (self.text,)
        for name in filter(None, fields):
            try:
                return self.fields[name].test(":", value)
            except TextError:
                if value.kind != "word":
                    raise
        hint = f"a bare word is one of {', '.join(self.bare)}" if self.bare else ""
        hint = did_you_mean(value.text, [*self.fields, *words], hint)
        raise value.wrong(f"{value.text!r} is not understood", hint)

    def knows(self, node: Node) -> bool:
        """Whether rows have all fields of the tree; bare words fit any rows."""
        return all(not t.field or t.field.lower() in self.fields for t in node.terms())


def _words(domain: Domain, fields: Sequence[str]) -> list[str]:
    return [word for name in fields for word in domain.fields[name].words if word.isalpha()]


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter; the empty one passes every row."""

    root: Node | None = field(default=None, repr=False, compare=False)
    text: str = ""
    missing: tuple[str, ...] = ()
    """Terms of the text whose fields only other rows have."""

    def __bool__(self) -> bool:
        return self.root is not None

    @property
    def canonical(self) -> str:
        """The text with one space between terms, and saved filters replaced by their text."""
        return self.root.inside if isinstance(self.root, Joined) else str(self.root or "")

    def mask(self, rows: RowTable | Array) -> Array:
        """Which rows pass: bool (n,)."""
        table = rows if isinstance(rows, RowTable) else RowTable(rows)
        if self.root is None:
            return np.ones(len(table), bool)
        return self.root.mask(table)

    def to_c(self) -> str:
        """`captured()` for flow.c. Raises TextError if the kernel cannot evaluate a term."""
        with placed(self.text):
            condition = self.root.to_c() if self.root is not None else "true"
        return (
            "static __always_inline bool\ncaptured(struct packet *p)\n"
            f"{{\n    return {condition};\n}}\n"
        )

    def conjunctions(self) -> tuple[Conjunction, ...]:
        """Alternatives that together are the filter; none if no packet passes it.

        Raises TextError if a packet alone cannot decide a term, or if there are too many.
        """
        with placed(self.text):
            return self.root.conjunctions() if self.root is not None else (Conjunction(),)


def check(text: str, saved: Mapping[str, str] = NONE) -> None:
    """Raise TextError, with the column, if the text is no filter for any rows."""
    with placed(text):
        tree(text, saved)


def parse(text: str, domain: Domain, saved: Mapping[str, str] = NONE) -> Filter:
    """Parse a filter for one kind of rows. Raises TextError, with the column."""
    with placed(text):
        root = tree(text, saved)
        return Filter(root.bound(domain.test) if root is not None else None, text.strip())


def parts(
    text: str, domains: Sequence[Domain], saved: Mapping[str, str] = NONE
) -> tuple[Filter, ...]:
    """Split a filter of several kinds of rows into one for each of `domains`.

    If all terms must hold, each kind is filtered by the terms that it knows. Raises TextError, also
    for a term that no kind knows.
    """
    found: list[list[Node]] = [[] for _ in domains]
    missing: list[list[str]] = [[] for _ in domains]
    with placed(text):
        for node in _conjuncts(tree(text, saved)):
            failures = []
            for domain, terms, others in zip(domains, found, missing, strict=True):
                try:
                    terms.append(node.bound(domain.test))
                except TextError as error:
                    failures.append((domain.knows(node), error))
                    others.append(str(node))
            if len(failures) == len(domains):
                # Best error: of rows with all fields, or else of rows with a similar field.
                raise max(failures, key=lambda one: (one[0], "did you" in one[1].hint))[1]
    return tuple(
        Filter(Joined("and", tuple(terms), 1) if terms else None, text.strip(), tuple(others))
        for terms, others in zip(found, missing, strict=True)
    )


def _conjuncts(root: Node | None) -> tuple[Node, ...]:
    if root is None:
        return ()
    return root.of if isinstance(root, Joined) and root.word == "and" else (root,)
