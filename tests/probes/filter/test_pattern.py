"""Patterns: every accepted one is quick; one that could run for ever is refused."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpf.errors import TextError
from probes.filter.pattern import MAX_TEXT, searcher

ENDLESS = [
    "(a+)+b", "(a*)*b", "(a|a)*b", "(a|aa)+b", "([a-z]+)*x", "(a?){40}a{40}", "(.*a){12}",
    ".*.*.*x", "a*a*a*a*b", "(?:)*{9}", "(?:){999999999}x", "((a{0,9}){0,9}){0,9}x",
    "(x(?:){9999999}){9999999}", r"(\w+\s?)+$", "(?=(a+)+b)", "a" * 201,
]  # fmt: skip
USUAL = [
    r"^10\.", r"www\d+", r"\.example\.(org|net)$", r"([0-9]{1,3}\.){3}7", ".*mail.*", "[a-f0-9:]+",
    r"^(smtp|mx)[0-9]?\.", r"ec2-\d+-", "^$", "a{3,}", "(?i:X)",
]  # fmt: skip


@pytest.mark.parametrize("pattern", ENDLESS)
def test_what_could_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(TextError):
        searcher(pattern)


@pytest.mark.parametrize("pattern", USUAL)
def test_what_operators_write_is_taken(pattern: str) -> None:
    searcher(pattern)


def test_it_looks_anywhere_whatever_the_case_in_as_much_as_a_host_name_is_long() -> None:
    found = searcher("mail$|^x")
    assert found("MAIL")
    assert not found("mail.")
    assert searcher("b")("a" * (MAX_TEXT - 1) + "b")
    assert not searcher("b")("a" * MAX_TEXT + "b")


_PARTS = ["a", "b", ".", "a*", "a+", "a?", "(", ")", "|", "*", "+", "?", "{2,9}", "{3}", "[ab]",
          "(?:", "^", "$", "\\b", "(?=", "(?!", "\\1", "??", "*?", "++"]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(_PARTS), max_size=14).map("".join))
def test_whatever_is_taken_is_quick(pattern: str) -> None:
    try:
        found = searcher(pattern)
    except TextError:
        return
    began = time.process_time()
    for text in ("a" * MAX_TEXT, "ab" * MAX_TEXT, "a" * (MAX_TEXT - 1) + "c"):
        found(text)
    assert time.process_time() - began < 1.0
