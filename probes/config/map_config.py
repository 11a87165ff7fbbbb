"""Keys of a configuration about maps: metrics, sharing, writing."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    model_validator,
)

from probes.config.config_errors import invalid


def _unicode(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise invalid(f"{text!a} is no text")
    return text


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")]
"""Name of a probe or metric; it becomes part of file names."""
_MACRO = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
Defined = Annotated[str, StringConstraints(pattern=rf"{_MACRO[:-1]}(\.[A-Za-z_][A-Za-z0-9_]*)*$")]
"""Name of a macro; for libbpf of a `const volatile` variable, or path of a variable's member."""
Text = Annotated[str, AfterValidator(_unicode)]
"""Text without surrogates, which JSON can spell and UTF-8 cannot."""


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)


def _age(seconds: float | str) -> float | str:
    if isinstance(seconds, str):
        if not re.fullmatch(_MACRO, seconds):
            raise invalid(f"{seconds[:40]!a} is neither a number of seconds nor a macro's name")
    elif seconds <= 0:
        raise invalid(f"must be more than 0 seconds, not {seconds:g}")
    return seconds


class Expire(Model):
    """Removal of a map's entries by their age."""

    field: Text
    """Path of the u64 with the time of an entry, such as `value.since`: nanoseconds of
    CLOCK_MONOTONIC."""
    seconds: Annotated[float | str, AfterValidator(_age)]
    """Greatest age: a number, or the name of a macro in `define`. The table of a window shows
    entries that expire at its end for the last time."""


class Metric(Model):
    """One map whose contents leave the system; others stay inside (S1.9)."""

    name: Name
    map: Text
    """The map's name in the source."""
    help: Text = ""
    snapshot: bool = False
    """Each window has its own map, which is read once packets no longer reach it (S1.13)."""
    init: bool = False
    """A read empties the map (S1.12), as it does for every snapshot metric. Counts of that moment
    may be lost or appear twice, unless the map is a snapshot's, a queue or a stack."""
    expire: Expire | None = None
    """Entries that a read removes from a hash without emptying it (S2.18)."""
    agg: Literal["", "sum", "avg", "min", "max"] = ""
    """Aggregation over the CPUs of a per-CPU map; empty: one value a CPU (S1.11)."""
    export: bool = True
    """False: each export empties the map without reading it (S1.18)."""
    record: Text = ""
    """C type of a ring's records, `struct event`; empty: as the calls that write say."""
    types: dict[Text, Text] = Field(default_factory=dict)
    """Types of fields, where the C type is not enough: `{"key.saddr": "ipv4"}`."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.export or self.init or self.snapshot or self.expire):
            raise invalid("neither exported nor emptied", at="export", hint="give init too")
        if not re.fullmatch(r"(((struct|union|enum) )?[A-Za-z_]\w*)?", self.record):
            raise invalid(f"{self.record[:40]!a} is no C type", at="record", hint="as struct event")
        if self.expire and (self.init or self.snapshot):
            raise invalid(
                "the map is emptied whenever it is read", at="expire", hint="leave it out"
            )
        return self


class MapEntry(Model):
    """An entry as tables show it: numbers, texts, lists, and tables of fields by name."""

    key: JsonValue
    """The index, for an array."""
    value: JsonValue


class MapOptions(Model):
    """Use of a map by other programs or by operators."""

    share: Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_.-]{0,63})?$")] = ""
    """`probe`: both directions share one map. Another name: all probes with that name share it.
    Every source declares the map, and all declarations are alike."""
    writable: bool = False
    """Operators may read and write its entries: an allow list, rules, limits."""
    entries: tuple[MapEntry, ...] = ()
    """First entries of a writable map."""
    types: dict[Text, Text] = Field(default_factory=dict)
    """Types of a writable map's fields, as for a metric."""
    private: bool = False
    """Nobody sees its contents: screens and REST show its name, size and fill (S1.9)."""
    programs: dict[int, Text] = Field(default_factory=dict)
    """Programs of the source in a program array, by slot: its tail calls reach them."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.share or self.writable or self.private or self.programs):
            raise invalid(
                "it is neither shared nor writable nor private",
                hint="give share, writable = true, private = true, or programs",
            )
        if self.private and self.writable:
            raise invalid("operators read and write the map", at="private", hint="leave it out")
        for key in ("entries", "types"):
            if getattr(self, key) and not self.writable:
                raise invalid("the map is not writable", at=key, hint="give writable = true")
        return self
