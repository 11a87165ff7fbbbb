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
"""A probe's or a metric's; it becomes part of a file's name."""
_MACRO = r"^[A-Z_][A-Z0-9_]{0,63}$"
Macro = Annotated[str, StringConstraints(pattern=_MACRO)]
"""A macro's name."""
Text = Annotated[str, AfterValidator(_unicode)]
"""Text that can be written out, unlike the halves of characters that JSON can spell."""


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
    """Path of the u64 that says when an entry was made, or used: `value.since`; nanoseconds of
    CLOCK_MONOTONIC."""
    seconds: Annotated[float | str, AfterValidator(_age)]
    """Greatest age, a number or the name of one in `define`. If an entry is older at the end of a
    window, that window's table shows it for the last time."""


class Metric(Model):
    """One map whose contents leave the system (S1.9: no other map's do)."""

    name: Name
    map: Text
    """The map's name in the source."""
    help: Text = ""
    snapshot: bool = False
    """Each window has its own map, read when no packet reaches it any more (S1.13)."""
    init: bool = False
    """Emptied when it is read (S1.12); a snapshot metric always is. Counts of that moment may be
    missing or appear twice, unless the map is a snapshot's, a queue or a stack."""
    expire: Expire | None = None
    """Entries that a read removes from a hash without emptying it (S2.18)."""
    agg: Literal["", "sum", "avg", "min", "max"] = ""
    """Over the CPUs of a per-CPU map; empty: one value for each CPU (S1.11)."""
    export: bool = True
    """False: only emptied at each export, never read (S1.18)."""
    types: dict[Text, Text] = Field(default_factory=dict)
    """Types of fields whose C type does not tell enough: `{"key.saddr": "ipv4"}`."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.export or self.init or self.snapshot or self.expire):
            raise invalid("neither exported nor emptied", at="export", hint="give init too")
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
    """`probe`: both directions work on one map. Another name: so do all probes that share a map
    under this name. The source declares it everywhere, and everywhere alike."""
    writable: bool = False
    """Operators may read and write its entries: an allow list, rules, limits."""
    entries: tuple[MapEntry, ...] = ()
    """First entries of a writable map."""
    types: dict[Text, Text] = Field(default_factory=dict)
    """Types of a writable map's fields, as for a metric."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.share or self.writable):
            raise invalid(
                "it is neither shared nor writable", hint="give share, or writable = true"
            )
        for key in ("entries", "types"):
            if getattr(self, key) and not self.writable:
                raise invalid("the map is not writable", at=key, hint="give writable = true")
        return self
