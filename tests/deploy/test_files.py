"""Every file of deploy/ is accepted by its own tool, and deploy/README.md says by which."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import click
import jsonschema_rs
import pytest
import yaml

from app.cli.main import cli
from app.exporters.kinds import parse
from app.exporters.openmetrics.families import FAMILIES
from probes.reports import OutputConfig
from tests.deploy.tools import DEPLOY, ROOT, package, python, run

DASHBOARD = DEPLOY / "grafana/probedeck.json"
RULES = DEPLOY / "prometheus/probedeck.rules.yml"
ROUND_TRIP = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
register_default_plugins()
print(JSONEncoder().encode(Dashboard.from_json(json.load(open(sys.argv[1])))))
"""
SERIES: dict[str, tuple[str, str]] = {
    "ProbedeckDown": ('up{job="probedeck"}', "0x20"),
    "ProbedeckNoWindows": ('probedeck_probe_window_end_timestamp_seconds{probe="flow"}', "0x20"),
    "ProbedeckProgramRemoved": ('probedeck_hook_info{mode="removed"}', "1x20"),
    "ProbedeckLosesPackets": ('probedeck_lost_packets_total{reason="ring"}', "0x10 7x10"),
    "ProbedeckTableNearlyFull": ('probedeck_probe_occupancy_ratio{table="flows"}', "0.95x20"),
    "ProbedeckPolicyActive": (
        'probedeck_policy_state{policy="flood",probedeck_policy_state="hold"}', "1x20",
    ),
    "ProbedeckPathLoss": ('probedeck_path_findings_total{kind="loss"}', "0x10 1x10"),
    "ProbedeckPathQueue": ('probedeck_path_findings_total{kind="queue"}', "0x10 1x10"),
    "ProbedeckOutputFailing": ('probedeck_output_state{probedeck_output_state="failing"}', "1x20"),
    "ProbedeckRecordsUndelivered": (
        'probedeck_output_undelivered_records_total{reason="refused"}', "0x10 3x10",
    ),
    "ProbedeckRowsUnwritten": ('probedeck_unwritten_rows_total{table="flows"}', "0x10 2x10"),
}  # fmt: skip
"""A series and its values, one each 15 s, that fire an alert and no other."""


def test_the_readme_has_each_file() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "deploy"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    rows = re.findall(r"^\| `([^`]+)` \|", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    found = {str(path.relative_to(ROOT)) for row in rows for path in DEPLOY.glob(row)}
    own = {"deploy/README.md", "deploy/__init__.py"}
    assert {name for name in listed if Path(ROOT, name).exists()} - own == found - own


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_grafana_knows_each_key_of_the_dashboard() -> None:
    back = json.loads(python("-c", ROUND_TRIP, DASHBOARD))
    assert lost(json.loads(DASHBOARD.read_text()), back) == []


def lost(given: Any, back: Any, at: str = "") -> list[str]:
    """Return the places where a value of `given` is missing or differs in `back`."""
    if isinstance(given, dict) and isinstance(back, dict):
        inner = (lost(value, back.get(key), f"{at}/{key}") for key, value in given.items())
    elif isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        pairs = enumerate(zip(given, back, strict=True))
        inner = (lost(one, other, f"{at}/{number}") for number, (one, other) in pairs)
    else:
        return [] if given == back else [at]
    return list(chain.from_iterable(inner))


def test_prometheus_accepts_rules_and_queries(tmp_path: Path) -> None:
    config = (DEPLOY / "prometheus/prometheus.yml").read_text()
    token = tmp_path / "read-token"
    token.touch()
    config = re.sub(r"(?<=credentials_file: ).*", str(token), config)
    (tmp_path / "prometheus.yml").write_text(config)
    (tmp_path / RULES.name).write_bytes(RULES.read_bytes())
    texts = [text.replace("$__rate_interval", "1m") for text in expressions()]
    records = [{"record": f"r{number}", "expr": text} for number, text in enumerate(texts)]
    queries = tmp_path / "queries.yml"
    queries.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": records}]}))
    run("promtool", "check", "config", tmp_path / "prometheus.yml")
    run("promtool", "check", "rules", queries)


def test_each_alert_fires_alone_for_its_cause(tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert [each["alert"] for each in rules] == list(SERIES)
    tests = [
        {
            "interval": "15s",
            "input_series": [{"series": series, "values": values}],
            "promql_expr_test": [
                {
                    "eval_time": "5m",
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
                }
            ],
        }
        for alert, (series, values) in SERIES.items()
    ]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "15s",
                                "tests": tests}))  # fmt: skip
    run("promtool", "test", "rules", file)


@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=lambda path: path.name)
def test_each_deployed_metric_exists(file: Path) -> None:
    known = {each.series for each in FAMILIES}
    known |= {f"{each.name}{end}" for each in FAMILIES for end in ("_sum", "_count")}
    known |= {each.name for each in FAMILIES if each.kind == "stateset"}
    used = set(re.findall(r"\bprobedeck_[a-z_]+", file.read_text()))
    assert len(used) > 5
    assert used <= known


def test_compose_accepts_the_fleet() -> None:
    file = DEPLOY / "fleet/compose.yaml"
    made = yaml.safe_load(file.read_text())
    schema = package("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema_rs.validator_for(json.loads(schema.read_text())).validate(made)
    services = made["services"].values()
    mounts = [text.split(":") for each in services for text in each["volumes"]]
    sources = [source for source, *_ in mounts if source.startswith(".")]
    assert len(sources) == 4
    assert all((file.parent / source).exists() for source in sources)


def test_kubernetes_accepts_the_daemon_set() -> None:
    file = DEPLOY / "kubernetes/daemonset.yaml"
    python("-m", "kubernetes_validate", "--strict", "-k", "1.37", file)
    _, made = yaml.safe_load_all(file.read_text())
    spec = made["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in spec["volumes"]
    }
    command, *options = [text.partition("=") for text in container["args"]]
    called = cli.get_command(click.Context(cli), command[0])
    assert called is not None
    assert {name for name, _, _ in options} <= {each for one in called.params for each in one.opts}
    for output in (value for name, _, value in options if name == "--output"):
        parse(OutputConfig(output.replace("$(NODE_ADDRESS)", "192.0.2.1")))
    assert made["spec"]["selector"]["matchLabels"] == made["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize(
    "file", ["systemd/probedeck.service", "fleet/systemd/goflow2.service"], ids=str
)
def test_systemd_accepts_the_unit(tmp_path: Path, file: str) -> None:
    unit = tmp_path / Path(file).name
    unit.write_text(re.sub(r"(?<=^ExecStart=)\S+", "/bin/true", (DEPLOY / file).read_text(),
                           flags=re.MULTILINE))  # fmt: skip
    told = run("systemd-analyze", "verify", "--man=no", unit)
    assert [line for line in told.splitlines() if unit.name in line] == []


def test_goflow2s_fields_are_those_of_the_store() -> None:
    """goflow2 itself runs in deploy/demo only."""
    mapping = yaml.safe_load((DEPLOY / "fleet/goflow2/mapping.yaml").read_text())
    schema = (DEPLOY / "fleet/clickhouse/schema.sql").read_text()
    table = re.findall(r"flows_in\n\((.*?)\n\)", schema, re.DOTALL)[0]
    assert mapping["formatter"]["fields"] == re.findall(r"^ +(\w+) ", table, re.MULTILINE)
    named = {each["name"] for each in mapping["formatter"]["protobuf"]}
    assert {each["destination"] for each in mapping["ipfix"]["mapping"]} == named


@pytest.mark.parametrize(
    "file",
    [
        "demo/run",
        "systemd/install",
        *(f"packages/{n}" for n in ("build", "postinst", "postrm", "prerm")),
    ],
)
def test_the_shell_reads_the_script(file: str) -> None:
    run("sh", "-n", DEPLOY / file)
