"""Regular expressions with bounded time on any text.

Python's matcher tries all ways in which an expression may match, and their number can be
astronomic: `(a+)+b`. So the number of ways is bounded before: as many as two `*` have in the
longest text. Texts are cut at that, the length of the longest host name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod
from re import _constants as codes
from re import _parser as parser
from typing import Any

from bpf.errors import TextError

MAX_PATTERN = 200
MAX_TEXT = 255
_MAX_WAYS = (MAX_TEXT + 1) ** 2
_TOO_MANY = _MAX_WAYS + 1
_DOUBLINGS = _MAX_WAYS.bit_length()


def searcher(pattern: str) -> Callable[[str], bool]:
    """Return a test whether a text contains `pattern`, ignoring case. Raises TextError."""
    if len(pattern) > MAX_PATTERN:
        problem = f"the pattern is longer than {MAX_PATTERN} characters"
        raise TextError(problem, pattern, MAX_PATTERN + 1)
    try:
        if _ways(parser.parse(pattern)) > _MAX_WAYS:
            hint = "{1,3} in the place of + or * has few"
            raise TextError("the pattern can match in too many ways", pattern, 1, hint=hint)
        search = re.compile(pattern, re.IGNORECASE).search
    except re.error as error:
        column = (error.pos or 0) + 1
        raise TextError(f"this is no pattern: {error.msg}", pattern, column) from None
    except (OverflowError, RecursionError) as error:
        raise TextError(f"this is no pattern: {error}", pattern, 1) from None
    return lambda text: search(text[:MAX_TEXT]) is not None


def _ways(parsed: Iterable[tuple[Any, Any]]) -> int:
    """The number of ways to match at one place, at most; numbers above the bound are alike."""
    return min(prod(_ways_of(code, about) for code, about in parsed), _TOO_MANY)


def _ways_of(code: Any, about: Any) -> int:
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        least, most, inner = about
        ways = _ways(inner)
        if inner.getwidth()[1] == 0:
            # An empty match can repeat for ever.
            return 1 if most <= 1 else _TOO_MANY
        if ways == 1:
            return max(1, int(min(most, MAX_TEXT)) - int(least) + 1)
        # With two or more ways each repetition at least doubles the number.
        times = range(min(int(least), _DOUBLINGS), min(int(most), _DOUBLINGS) + 1)
        return sum(ways**count for count in times)
    if code is codes.BRANCH:
        return sum(map(_ways, about[1]))
    if code is codes.SUBPATTERN:
        return _ways(about[3])
    if code is codes.ATOMIC_GROUP:
        return _ways(about)
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return _ways(about[1])
    if code is codes.GROUPREF_EXISTS:
        return sum(_ways(part) for part in about[1:] if part)
    return 1
