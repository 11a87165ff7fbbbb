"""Flattening of a probe's includes."""

from __future__ import annotations

import pytest

from bpf.compiler.source import fits_every_hook, flatten, place_of


@pytest.mark.parametrize("name", ["prob.h", "/etc/hostname", "../include/probe.h", "linux/ip.h"])
def test_only_its_own_headers_are_taken_and_all_others_left_to_the_compiler(name: str) -> None:
    assert f'#include "{name}"' in flatten(f'#include "{name}"\n', "flow.c", {"mine.h": ""})


def test_what_is_in_a_comment_or_a_text_is_no_include() -> None:
    source = '/* So:\n#include "probe.h"\n*/\nchar *a = "\\\n#include \\"probe.h\\"";\n'
    assert "VERDICT_PASS" not in flatten(source, "flow.c")


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


@pytest.mark.parametrize(
    ("source", "fits"),
    [
        ("int f(CONTEXT *ctx) { return VERDICT_PASS; }", True),
        (
            "#ifdef HOOK_XDP\nint f(struct xdp_md *c)\n#else\nint f(struct __sk_buff *c)\n#endif",
            True,
        ),
        ("int f(struct xdp_md *ctx) { return XDP_PASS; }", False),
        ("int f(void *ctx) { return 2; }", False),
        # On TC this verdict would drop each packet.
        ("int f(CONTEXT *ctx) { return XDP_PASS; }", False),
        ("int f(CONTEXT *ctx) { bpf_xdp_load_bytes(ctx, 0, 0, 0); return VERDICT_PASS; }", False),
        ("int f(struct xdp_md *ctx) { return 2; } /* CONTEXT */", False),
        ("int f(CONTEXT *ctx) { return VERDICT_PASS; } // not XDP_PASS", True),
    ],
)
def test_a_source_fits_every_hook_if_it_names_no_hooks_own_things(source: str, fits: bool) -> None:
    assert fits_every_hook(source) is fits
