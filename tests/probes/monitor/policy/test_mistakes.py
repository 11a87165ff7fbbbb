"""Every mistake of a file of policies at once, each at its line and column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bpf.errors import TextError, UsageError
from probes.monitor.policy import load

TOML = r'''# Mistakes everywhere.
application = ["zzz.toml"]
[monitor]
bits = 12.5
[profiles]
web = ["dsn"]

[[policy]]
nam = "a"
condition = "packets > 9 and flws > 5"
run = ["heavy_hiters"]
select = ["dport:53", "udp port 53"]

[[policy]]
name = "bä"
condition = """
  flows > 5
  and rate(packets on \
      proto:udp sprot:53) > 5"""
hold = "5 parsecs"
run = []

[[policy]]
name = "c"
mode = "permanent"
deactivate = "packets > \"5"
cooldown = 5
run = ["dns", "trace:99"]
suspects = "flags:S packts<3"

[[policy]]
name = 'c'
condition = "flows > 5"
run = "dns"
'''
MARKED = '''\
2:16: application[0]: zzz.toml: No such file or directory; there are policies.toml
application = ["zzz.toml"]
               ^
4:8: monitor.bits: must be a valid integer, not 12.5
bits = 12.5
       ^
6:8: profiles.web[0]: there is no application 'dsn'; did you mean dns?
web = ["dsn"]
       ^
9:1: policy[0].nam: no such key; did you mean name?
nam = "a"
^
10:30: policy[0].condition: 'flws' is no metric; did you mean flows?
condition = "packets > 9 and flws > 5"
                             ^
11:8: policy[0].run[0]: there is no application 'heavy_hiters'; did you mean heavy_hitters?
run = ["heavy_hiters"]
       ^
12:28: policy[0].select[1]: 'port' has no value; write port:443
select = ["dport:53", "udp port 53"]
                           ^
15:8: policy[1].name: 'bä' is not a name; up to 64 letters, digits, _ . and -, the first a letter \
or _
name = "bä"
       ^
19:17: policy[1].condition: flows have no 'sprot'; did you mean sport?
      proto:udp sprot:53) > 5"""
                ^
20:11: policy[1].hold: 'parsecs' is no unit here; units are ns, us, ms, s, m, h, d
hold = "5 parsecs"
          ^
21:7: policy[1].run: must not be empty
run = []
      ^
26:14: policy[2].deactivate: mode permanent has none; triggered has
deactivate = "packets > \\"5"
             ^
26:25: policy[2].deactivate: '"' is not understood
deactivate = "packets > \\"5"
                        ^
27:12: policy[2].cooldown: mode permanent has none; triggered has
cooldown = 5
           ^
28:15: policy[2].run[1]: '99' is not a number of flows, 1 to 16
run = ["dns", "trace:99"]
              ^
29:21: policy[2].suspects: flows have no 'packts'; did you mean packets?
suspects = "flags:S packts<3"
                    ^
32:8: policy[3].name: there are two policies 'c'
name = 'c'
       ^
34:7: policy[3].run: must be a list
run = "dns"
      ^
'''


def marked(path: Path) -> str:
    with pytest.raises(UsageError) as refusal:
        load(path)
    lines = []
    for each in refusal.value.mistakes:
        assert isinstance(each, TextError)
        assert each.placed
        lines += [str(each), each.marked]
    return "\n".join([*lines, ""]).replace(f"{path}:", "").replace(f"{path.parent}/", "")


def test_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "policies.toml"
    path.write_text(TOML)
    assert marked(path) == MARKED


def test_a_json_file(tmp_path: Path) -> None:
    """Columns count in the file, where a text may have escapes."""
    path = tmp_path / "policies.json"
    policy = {"name": "a", "condition": 'ports on "udp \U0001f600" > 5', "run": ["dns", "dsn"]}
    text = json.dumps({"policy": [policy, {"nme": "b", "run": ["dns"]}]}, indent=1)
    path.write_text(text)
    lines = [
        "5:33: policy[0].condition: '\U0001f600' is not understood; a bare word is one of proto,"
        " port, net",
        text.splitlines()[4],
        " " * 32 + "^",
        "8:5: policy[0].run[1]: there is no application 'dsn'; did you mean dns?",
        '    "dsn"',
        "    ^",
        "12:4: policy[1].nme: no such key; did you mean name?",
        '   "nme": "b",',
        "   ^",
        "",
    ]
    assert marked(path) == "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("[[policy]]\nrun = [\n", "3:1: Invalid value\n\n"),
        ("a = 1\na = 2 # b\n", "2:6: Cannot overwrite a value\na = 2 # b\n     ^\n"),
        ("a = '\u2028'\n\n  b = ?", "3:7: Invalid value\n  b = ?\n      ^\n"),
    ],
)
def test_no_toml(tmp_path: Path, text: str, marks: str) -> None:
    path = tmp_path / "policies.toml"
    path.write_text(text)
    assert marked(path) == marks
