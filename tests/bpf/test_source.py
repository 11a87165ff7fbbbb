"""Flattening of a probe's includes."""

from __future__ import annotations

import pytest

from bpf.compiler.source import flatten, place_of


@pytest.mark.parametrize("name", ["prob.h", "/etc/hostname", "../include/probe.h", "linux/ip.h"])
def test_only_its_own_headers_are_taken_and_all_others_left_to_the_compiler(name: str) -> None:
    assert f'#include "{name}"' in flatten(f'#include "{name}"\n', "flow.c", {"mine.h": ""})


def test_what_is_in_a_comment_or_a_text_is_no_include() -> None:
    source = '/* So:\n#include "probe.h"\n*/\nchar *a = "\\\n#include \\"probe.h\\"";\n'
    assert "PROBE_H" not in flatten(source, "flow.c")


def test_places_are_those_in_code() -> None:
    source = '// here\nchar *a = "here"; /*\nhere */ int b, here;\n'
    assert place_of(source, "here") == (3, 16)
    assert place_of(source, "her") == (0, 0)


def test_each_header_is_taken_once_even_where_headers_include_each_other() -> None:
    headers = {"a.h": '#include "b.h"\nint a;\n', "b.h": '#include "a.h"\nint b;\n'}
    text = flatten('#include "a.h"\n#include "b.h"\n', "flow.c", headers)
    assert text.count("int a;") == 1
    assert text.count("int b;") == 1


def test_a_generated_header_goes_before_the_one_of_the_same_name() -> None:
    assert "int mine;" in flatten('#include "probe.h"\n', "flow.c", {"probe.h": "int mine;\n"})


def test_system_headers_are_left_to_the_compiler() -> None:
    assert "#include <uapi/linux/ip.h>" in flatten("#include <uapi/linux/ip.h>\n", "flow.c")
