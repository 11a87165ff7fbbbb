"""The menu of policies that come with probedeck."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bpf.errors import UsageError
from probes.monitor.policy import load
from probes.monitor.policy.ready import FILE, GROUPS, menu, policies_of, purposes
from tests.app.console.screens.triggers.test_triggers import console, policies


def test_every_shipped_policy_has_a_purpose_and_is_found_by_its_name() -> None:
    shipped = load(FILE).policy
    assert list(purposes()) == [policy.name for policy in shipped]
    assert all(20 <= len(text) <= 125 and "#" not in text for text in purposes().values())
    assert policies_of(" syn_flood ") == tuple(p for p in shipped if p.name == "syn_flood")
    assert policies_of("mine: flows > 5 -> dns")[0].name == "mine"
    with pytest.raises(UsageError, match="did you mean syn_flood"):
        policies_of("syn_flod")
    examples = Path(__file__).parents[5] / "examples" / "policies.toml"
    assert examples.resolve() == FILE


def test_groups_have_every_policy_that_tells_an_attack_once() -> None:
    told = [policy.name for policy in load(FILE).policy if policy.mode == "triggered"]
    assert sorted(name for of in GROUPS.values() for name in of) == sorted(told)
    assert {policy.name for policy in policies_of("tunnels")} == {*GROUPS["tunnels"]}
    assert {policy.name for policy in policies_of("amplification")} == {*GROUPS["amplification"]}
    assert policies_of("all") == load(FILE).policy


async def test_a_adds_a_group() -> None:
    async with console(*policies()) as c:
        await c.press("a")
        await c.type("tunnels")
        await c.press("enter")
        await c.asks(*(("set_policy", one.to_short()) for one in policies_of("tunnels")))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
async def test_a_offers_ready_policies_and_takes_ones_own(width: int, height: int) -> None:
    async with console(*policies(), width=width, height=height) as c:
        await c.press("a")
        assert "syn_flood          Connections that nobody completes: flows" in c.text
        assert f"{len(menu())} in all" in c.text
        await c.press("down", "down")
        assert re.search(r"Add *floods", c.lines[-2])
        await c.press("up", "up")
        await c.type("udp_")
        assert [line.split()[0] for line in c.lines if line.startswith(" udp_")] == [
            "udp_flood", "udp_scan", "udp_sweep",
        ]  # fmt: skip
        await c.press("down", "down", "enter")
        await c.asks(("set_policy", policies_of("udp_scan")[0].to_short()))
        await c.becomes(lambda: "udp_sweep" not in c.text)
        await c.press("a")
        await c.type("scan")
        found = [line.split()[0] for line in c.lines if re.match(r" \w+_scan  ", line)]
        assert {"port_scan", "udp_scan"} <= set(found)
        await c.press("ctrl+u")
        await c.type("syn_flod")
        await c.press("enter")
        assert "did you mean syn_flood" in c.text
        await c.press("escape", "a")
        await c.type("own")
        assert "in all" not in c.text
