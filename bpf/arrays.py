"""Types of numpy arrays, and views of their memory.

A table is a structured array. Its dtype stands at the top of a module:

    FLOW = np.dtype([("packets", "u8"), ("bytes", "u8")])

    def mean(rows: Rows[FLOW]) -> Array:
        return rows["bytes"] / rows["packets"]

mypy knows the columns by its plugin, `.ci/column_types.py`: a subscript by a name that FLOW lacks
is an error. A dtype that begins with `*FLOW.descr` has the columns of FLOW, and its rows are
accepted as `Rows[FLOW]`. A name in a variable is not checked.

Nothing checks these types at run time, so modules that use them import annotations from
__future__.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np

_Row = TypeVar("_Row", bound=np.void)
Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
"""An array of any shape and dtype. If the shape is `Any`, mypy takes three times as long in all."""
Rows = np.ndarray[tuple[int, ...], np.dtype[_Row]]
"""`Rows[FLOW]`: an array of rows of dtype FLOW."""
Row: TypeAlias = np.void
"""`Row[FLOW]`: one such row.

It is `numpy.void` at run time."""


def bytes_of(rows: Array) -> Array:
    """Return the memory of rows (n,), (n, bytes of a row), copied if needed."""
    return np.ascontiguousarray(rows).view("u1").reshape(len(rows), rows.dtype.itemsize)


def halves(addresses: Array) -> Array:
    """Return addresses (n, 16) u1 as words (n, 2), copied if needed."""
    return np.ascontiguousarray(addresses).view("u8").reshape(len(addresses), 2)
