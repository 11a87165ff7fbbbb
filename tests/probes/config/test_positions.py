"""Positions of keys and values, in texts that the parsers accept."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from probes.config.positions import Keys, positions

ROOT = Path(__file__).parents[3]
TOML = (
    r'''# "a" = [
title = "T" # b = "]"
"quoted key".'other' . bare-1 = 'C:\no'
when = 1979-05-27 07:32:00Z
numbers = [ 1_000, 0xff, -inf, # one
  1e5, ]
many = [["a", 'b'], [{x = "é\u00e9\U0001F600", y.z = true}, {}]]
text = """
"one" \
    two\t""three"""""
raw = '''
    + """'''
it's'''
[table.below]
k="v"
[[array]]
[array.sub]
x = 1
[[array]]
[[array.inner]]
n = "a"
[[array.inner]]
n = "b"
"""
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda of: st.lists(of, max_size=4) | st.dictionaries(st.text(max_size=5), of, max_size=4),
    max_leaves=12,
)


def paths(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    yield keys, value
    items = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else items:
        yield from paths(each, (*keys, key))


def check(text: str, data: object, *, toml: bool) -> None:
    found = positions(text, toml=toml)
    for keys, value in paths(data):
        if not toml:
            assert keys in found
        if isinstance(value, str):
            at = found[keys].characters
            assert len(at) == len(value) + 1
            for character, offset in zip(value, at, strict=False):
                assert text[offset] in (character, "\\")


def test_toml() -> None:
    check(TOML, tomllib.loads(TOML), toml=True)
    for path in [*ROOT.glob("examples/**/*.toml"), *ROOT.glob("probes/**/*.toml")]:
        check(path.read_text(), tomllib.loads(path.read_text()), toml=True)


@settings(max_examples=100, deadline=None)
@given(VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_json(data: object, indent: int | None, ascii_only: bool) -> None:
    check(json.dumps(data, indent=indent, ensure_ascii=ascii_only), data, toml=False)
