"""Flattening of a probe's includes."""

from __future__ import annotations

import pytest

from bpf.compiler.source import flatten
from bpf.errors import UsageError


def test_an_unknown_header_is_told_with_its_place_and_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r'flow\.c:2: no header "prob\.h"') as caught:
        flatten('#include "probe.h"\n#include "prob.h"\n', "flow.c", {"mine.h": ""})
    assert "probe.h" in caught.value.hint
    assert "mine.h" in caught.value.hint


def test_an_unknown_header_of_a_header_is_told_with_the_headers_line() -> None:
    with pytest.raises(UsageError, match=r'mine\.h:3: no header "lost\.h"'):
        flatten('#include "mine.h"\n', "flow.c", {"mine.h": '\n\n#include "lost.h"\n'})


def test_each_header_is_taken_once_even_where_headers_include_each_other() -> None:
    headers = {"a.h": '#include "b.h"\nint a;\n', "b.h": '#include "a.h"\nint b;\n'}
    text = flatten('#include "a.h"\n#include "b.h"\n', "flow.c", headers)
    assert text.count("int a;") == 1
    assert text.count("int b;") == 1


def test_a_generated_header_goes_before_the_one_of_the_same_name() -> None:
    assert "int mine;" in flatten('#include "probe.h"\n', "flow.c", {"probe.h": "int mine;\n"})


def test_system_headers_are_left_to_the_compiler() -> None:
    assert "#include <uapi/linux/ip.h>" in flatten("#include <uapi/linux/ip.h>\n", "flow.c")
