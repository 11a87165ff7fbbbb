"""The 256 colours of terminals: their values, and the nearest one to a colour."""

from __future__ import annotations

from functools import lru_cache

_LEVELS = (0, 95, 135, 175, 215, 255)
VALUES = {
    16 + 36 * r + 6 * g + b: (red, green, blue)
    for r, red in enumerate(_LEVELS)
    for g, green in enumerate(_LEVELS)
    for b, blue in enumerate(_LEVELS)
    if r or g  # schemes for sixteen colours redefine the first ones
} | {232 + grey: (8 + 10 * grey,) * 3 for grey in range(24)}
"""Red, green and blue of each colour by its number, without the sixteen that users choose."""
_NUMBERS = {value: number for number, value in VALUES.items()}


@lru_cache(maxsize=1024)
def number_of(red: int, green: int, blue: int, *, exact: bool) -> int | None:
    """Return the number of a colour. Without it: the nearest colour's, or None if `exact`."""
    number = _NUMBERS.get((red, green, blue))
    if number is not None or exact:
        return number

    def distance(number: int) -> int:
        # Eyes see differences of green best.
        values = VALUES[number]
        return (
            2 * (values[0] - red) ** 2 + 4 * (values[1] - green) ** 2 + 3 * (values[2] - blue) ** 2
        )

    return min(VALUES, key=distance)
