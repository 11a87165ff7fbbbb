"""Headers beside a probe's C file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bpf.compiler import CompileError, Compiler
from bpf.errors import UsageError
from probes.config.model import ProbeConfig, dump, load, parse
from probes.program.loading import compile_probe
from tests.probes.program.tools import Loose, total

CONFIG = """\
name = "probe"
interval = 0
[ingress]
interface = "lo"
hook = "xdp"
source = "src/probe.c"
[[ingress.metrics]]
name = "packets"
map = "packets"
"""
PROBE = """\
#include "probe.h"
#include "net/count.h"

int f(CONTEXT *ctx) {
    count();
    return VERDICT_PASS;
}
"""
COUNT = """\
#include "key.h"
#include "shared.h"
BPF_ARRAY(packets, u64, 1);

static __always_inline void count(void) {
    u32 key = KEY;
    u64 *n = packets.lookup(&key);
    if (n)
        *n += STEP;
}
"""
FILES = {
    "src/probe.c": PROBE,
    "src/net/count.h": COUNT,
    "src/net/key.h": '#define KEY 0\n#include "count.h"\n',
    "src/shared.h": "#define STEP 2\n",
}


def written(directory: Path, files: Mapping[str, str]) -> Path:
    """A configuration's file, beside these."""
    for name, text in {"probe.toml": CONFIG, **files}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory / "probe.toml"


def refused(compiler: Compiler, loose: Loose, config: ProbeConfig) -> CompileError:
    with pytest.raises(CompileError) as caught:
        compile_probe(compiler, config, loose.hooks)
    return caught.value.renamed(config.files())


def test_headers_may_have_maps_and_headers_of_their_own(loose: Loose, tmp_path: Path) -> None:
    """`net/key.h` of the file, not bpf/include's key.h; also after a way through the API."""
    config = load(written(tmp_path, FILES))
    assert set(config.ingress.headers) == {"net/count.h", "net/key.h", "shared.h"}  # type: ignore[union-attr]
    for each in (config, parse(dump(config), "request")):
        probe = loose.add(each)
        loose.send(3)
        assert total(probe.export()) == 6
        loose.remove(probe)


def test_an_error_in_a_header_is_told_with_its_file_and_line(
    compiler: Compiler, loose: Loose, tmp_path: Path
) -> None:
    unsafe = COUNT.replace("BPF_ARRAY(packets, u64, 1)", "BPF_HASH(packets, u32, u64, 1)")
    for broken, line, what in (
        (COUNT.replace("KEY;", "unheard_of;"), 6, "use of undeclared identifier 'unheard_of'"),
        (unsafe.replace("    if (n)\n", "\n"), 9, "invalid mem access 'map_value_or_null'"),
    ):
        config = load(written(tmp_path, {**FILES, "src/net/count.h": broken}))
        error = refused(compiler, loose, config)
        (found,) = [d for d in error.diagnostics if d.severity == "error"]
        assert (found.file, found.line) == (f"{tmp_path}/src/net/count.h", line)
        assert what in found.text
    config = load(written(tmp_path, {**FILES, "src/probe.c": PROBE + "int g = oops;\n"}))
    said = str(refused(compiler, loose, config))
    file = f"{tmp_path}/src/probe.c"
    assert said.startswith(f"{file} does not compile: {file}:8:9: error: use of undeclared")


@pytest.mark.parametrize(
    "name", ["../../secret.h", "net/../../../secret.h", "ABSOLUTE", "linked.h", "to/secret.h"]
)
def test_files_outside_of_the_directory_are_not_read(
    compiler: Compiler, loose: Loose, tmp_path: Path, name: str
) -> None:
    name = name.replace("ABSOLUTE", f"{tmp_path}/secret.h")
    own = tmp_path / "own"
    path = written(own, {**FILES, "src/probe.c": f'#include "{name}"\n{PROBE}'})
    (tmp_path / "secret.h").write_text("root:x:0\n")
    (own / "src/linked.h").symlink_to(tmp_path / "secret.h")
    (own / "src/to").symlink_to(tmp_path)
    config = load(path)
    assert "root:x" not in str(dump(config))
    error = refused(compiler, loose, config)
    (first, *_) = error.diagnostics
    assert (first.file, first.line) == (f"{own}/src/probe.c", 1)
    assert "file not found; available headers:" in first.text
    assert "root:x" not in str(error.diagnostics)


@pytest.mark.parametrize(
    ("included", "key", "where"),
    [
        ("../common/x.h", "", "below the configuration's directory"),
        ("x.h", 'include = ["common"]\n', "in a directory of include"),
        ("common/x.h", 'include = ["nothing", "."]\n', "below a directory of include"),
    ],
)
def test_headers_of_other_directories(
    compiler: Compiler, loose: Loose, tmp_path: Path, included: str, key: str, where: str
) -> None:
    """Six lessons of xdp-tutorial include "../common/x.h"; the same text also comes by the API."""
    source = f'#include "{included}"\n{PROBE}'
    files = {**FILES, "src/probe.c": source, "common/x.h": '#include "y.h"\n', "nothing/z.h": "",
             "common/y.h": "#define ANYTHING oops\n"}  # fmt: skip
    path = written(tmp_path, files)
    path.write_text(CONFIG.replace("source =", f"{key}source ="))
    config = load(path)
    probe = loose.add(parse(dump(config), "request"))
    loose.send(1)
    assert total(probe.export()) == 2, where
    (tmp_path / "common/y.h").write_text("int g = oops;\n")
    (found, *_) = refused(compiler, loose, load(path)).diagnostics
    assert (found.file, found.line) == (f"{tmp_path}/common/y.h", 1)


def test_a_directory_to_include_that_is_none(tmp_path: Path) -> None:
    path = written(tmp_path, FILES)
    path.write_text(CONFIG.replace("source =", 'include = ["none"]\nsource ='))
    with pytest.raises(UsageError, match=r"ingress\.include: .*/none is no directory"):
        load(path)
    sent = {"interface": "lo", "source": "int f;\n", "include": ["."]}
    with pytest.raises(UsageError, match=r"include: the source is no file; give the texts"):
        parse({"name": "p", "ingress": sent}, "request", tmp_path)


def test_a_link_that_stays_inside_is_followed(loose: Loose, tmp_path: Path) -> None:
    path = written(tmp_path, FILES)
    (tmp_path / "src/shared.h").unlink()
    (tmp_path / "src/shared.h").symlink_to("net/step.h")
    (tmp_path / "src/net/step.h").write_text("#define STEP 3\n")
    probe = loose.add(load(path))
    loose.send(1)
    assert total(probe.export()) == 3


def test_a_source_of_a_request_has_no_files(
    compiler: Compiler, loose: Loose, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("root:x:0\n")
    source = f'#include "{secret}"\nint f;\n'
    sent = {"name": "p", "ingress": {"interface": "lo", "source": source}}
    config = parse(sent, "request")
    assert config.ingress is not None
    assert config.ingress.headers == {}
    error = refused(compiler, loose, config)
    assert "file not found" in error.diagnostics[0].text
    assert "root:x" not in str(error.diagnostics)
    for name in ("a/../../x.h", "/etc/passwd", "a b.h", "./a.h", 'x"h', "a//b.h"):
        sent["ingress"] = {"interface": "lo", "source": "int f;", "headers": {name: ""}}
        with pytest.raises(UsageError, match="is no name of a header"):
            parse(sent, "request")


def test_an_edit_may_include_another_header_beside_the_file(loose: Loose, tmp_path: Path) -> None:
    config = load(written(tmp_path, FILES))
    (tmp_path / "src/more.h").write_text("#undef STEP\n#define STEP 5\n")
    text = PROBE.replace("\nint f", '\n#include "more.h"\nint f')
    edited = config.with_source("ingress", text.replace("count();", "count(); count();"))
    assert edited.ingress.headers["more.h"]  # type: ignore[union-attr]
    probe = loose.add(edited)
    loose.send(1)
    assert total(probe.export()) == 4
    # Headers that ran stay as they ran: a file that changed meanwhile is not half of a source.
    (tmp_path / "src/shared.h").write_text("#define STEP 9\n")
    again = edited.with_source("ingress", text)
    assert again.ingress.headers == edited.ingress.headers  # type: ignore[union-attr]


def test_headers_that_are_no_text_or_too_many_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, FILES)
    (tmp_path / "src/shared.h").write_bytes(b"\xff\0")
    with pytest.raises(UsageError, match=r"ingress.source: .*/src/shared.h: it is binary, no text"):
        load(path)
    for name in ("shared.h", "net/key.h"):
        (tmp_path / "src" / name).write_text("// " + "x" * 600_000)
    with pytest.raises(UsageError, match="the headers have more than 1 MiB"):
        load(path)
