"""Units of quantities: only like units can be added and compared."""

from __future__ import annotations

from typing import NamedTuple

from bpf.quantities import BIT_RATES, COUNTS, SHARES, SIZES, TIMES


class Unit(NamedTuple):
    """Powers of the base units; None: any, as of a number without a unit."""

    packets: int | None = 0
    bytes: int | None = 0
    flows: int | None = 0
    sources: int | None = 0
    destinations: int | None = 0
    ports: int | None = 0
    protocols: int | None = 0
    seconds: int | None = 0

    def fits(self, other: Unit) -> bool:
        """Whether the two can be added or compared."""
        pairs = zip(self._reduced, other._reduced, strict=True)
        return all(a is None or b is None or a == b for a, b in pairs)

    def joined(self, other: Unit) -> Unit:
        """Unit of the sum of two that fit."""
        return Unit(*(b if a is None else a for a, b in zip(self, other, strict=True)))

    def times(self, other: Unit) -> Unit:
        if PLAIN in (self, other):
            return other if self == PLAIN else self
        powers = [
            None if a is None or b is None else a + b for a, b in zip(self, other, strict=True)
        ]
        return Unit(*powers)

    def inverse(self) -> Unit:
        return Unit(*(None if a is None else -a for a in self))

    @property
    def _reduced(self) -> Unit:
        """Flows per packet, and other counts per count, are a ratio."""
        counts = {name: getattr(self, name) for name in _COUNTED}
        if None in counts.values() or sum(counts.values()):
            return self
        return self._replace(**dict.fromkeys(counts, 0))

    @property
    def label(self) -> str:
        """`bytes per packet`, `a ratio`, or `a number per second` if the rest is open."""
        over = [name[:-1] for name, power in self._asdict().items() for _ in range(-(power or 0))]
        of = [name for name, power in self._asdict().items() for _ in range(power or 0)]
        if self == RATIO:
            return "a ratio"
        return " per ".join([" times ".join(of) or "a number", *over])


_COUNTED = ("packets", "flows", "sources", "destinations", "ports", "protocols")
PLAIN = Unit(*(None for _ in Unit._fields))
RATIO = Unit()
TIME = Unit(seconds=1)
METRIC_COUNTS = {name: Unit(**{name: 1}) for name in (*_COUNTED, "bytes")}
"""Units of metrics, by the last word of their names."""
_SIZE = Unit(**dict.fromkeys(_COUNTED), bytes=1)
"""A number of bytes may be a packet's."""


class Suffix(NamedTuple):
    """A unit behind a number, as a scale of the base unit."""

    scale: float
    unit: Unit


_BITS = _SIZE._replace(seconds=-1)
SUFFIXES = {
    **{name: Suffix(scale, PLAIN) for name, scale in {"": 1.0, **COUNTS}.items()},
    **{name: Suffix(scale, _SIZE) for name, scale in SIZES.items() if name not in COUNTS},
    **{
        name: Suffix(scale / 8, _BITS if name.endswith("bps") else _SIZE)
        for name, scale in BIT_RATES.items()
        if name.endswith(("bit", "bps"))
    },
    **{name: Suffix(scale, RATIO) for name, scale in SHARES.items()},
    **{name: Suffix(scale, TIME) for name, scale in TIMES.items()},
}
"""By name; `/s` may follow those of counts and sizes."""
