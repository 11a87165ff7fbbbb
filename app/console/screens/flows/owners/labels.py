"""Groups of flows by a label, such as the owner or the interface.

Each flow has one label, so sums over groups are sums over flows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

import numpy as np

from app.commands.flow_view import INTERFACES, NODES, OWNER_KINDS
from bpf.arrays import Array
from probes.flow.interfaces import names_of
from probes.sockets.records import Owned, Reason

_UNKNOWN = "no owner yet"
"""Label of flows of a window whose owners are not known yet."""


def labels_of(kind: str, flows: Array, owned: Owned) -> tuple[Array, Mapping[int, str]]:
    """Return the label's number of each of `flows` (n,), and the label of each number.

    `kind` is one of LABEL_KINDS. Flows without an owner have the label of their reason.
    """
    if kind == INTERFACES:
        found = names_of(flows)
        numbers = [_number(text) for text in found.texts]
        return np.array(numbers, "u8")[found.codes], dict(zip(numbers, found.texts, strict=True))
    if kind == NODES:
        none = np.zeros(len(owned.at), "u8")
        return none if owned.salts is None else owned.salts, {0: "this host", **owned.nodes}
    noun = OWNER_KINDS[kind]
    coded = owned.texts(noun)
    texts = [text or f"no {noun}" for text in coded.texts[:-1]]
    known = len(texts)
    texts += [f"no owner: {reason.label}" if reason else _UNKNOWN for reason in Reason]
    codes = np.where(coded.codes < known, coded.codes, known + owned.reason)
    texts.append(_UNKNOWN)
    codes[owned.at < 0] = len(texts) - 1
    numbers = [_number(text) for text in texts]
    return np.array(numbers, "u8")[codes], dict(zip(numbers, texts, strict=True))


@cache
def _number(text: str) -> int:
    """Return the number of a label: the same in every frame."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
