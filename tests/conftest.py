"""Settings of all tests."""

from __future__ import annotations

import gc
import os
import tempfile

import pytest

from tests import times
from tests.support import compiling

_FIRST = (
    # The emulated kernel of .ci/run uses the programs that this module compiles.
    "probes/test_every_kernel",
    "test_benches",
    "probes/test_hostile",
    "probes/monitor/actions/test_actions",
    "app/explain/test_situations",
    "app/api/server/test_fuzz",
    "probes/control/test_budget_live",
    "probes/monitor/owners/test_owner_policies",
    "probes/monitor/test_monitor",
    "topologies/ends/test_extent",
    "topologies/test_many",
    "probes/path/beside/test_own_traffic",
    "probes/path/test_destination",
    "probes/path/round_trips/test_tcp",
    "probes/path/test_truth",
    "topologies/test_changes",
)
"""Modules of half a minute and more, of both parts: begun last, one would run alone at the end."""
_WAITING = ("tests/topologies/", "tests/probes/path/active/", "tests/app/cli/", "tests/app/run/")
_LONG = ("tests/app/console/", "tests/app/api/", "tests/widgets/", "tests/probes/path/analysis/")
"""Their files take up to half a minute of CPU: at the end, one would run alone."""

_ALIKE = frozenset(
    [
        "app/api/server/test_commands",
        "app/console/screens/programs/test_library",
        "app/console/screens/programs/test_maps",
        "app/console/screens/triggers/test_ready_policies",
        "app/console/test_help",
        "app/exporters/files/test_sql",
        "app/lab/test_lab_paths",
        "app/run/test_run_probes",
        "app/tape/test_player",
        "bpf/compiler/test_headers",
        "bpf/compiler/test_verifier_reasons",
        "bpf/maps/test_compiled_maps",
        "probes/control/test_controller_checks",
        "probes/control/test_hook_order",
        "probes/flow/test_filter",
        "probes/flow/test_parser",
        "probes/flow/test_source",
        "probes/flow/test_tunnels",
        "probes/flow/test_windows",
        "probes/foreign/test_events",
        "probes/foreign/test_foreign",
        "probes/monitor/actions/test_actions",
        "probes/monitor/test_example_policies",
        "probes/monitor/test_monitor",
        "probes/path/active/test_own_flows",
        "probes/path/active/test_without_traffic",
        "probes/path/analysis/round_trips/test_watch_delays",
        "probes/path/analysis/test_gaps",
        "probes/path/analysis/test_losses",
        "probes/path/analysis/test_watch",
        "probes/path/analysis/test_watch_routes",
        "probes/path/beside/test_own_traffic",
        "probes/path/beside/test_two_tracers",
        "probes/path/events/test_situations",
        "probes/path/planning/test_flow_lengths",
        "probes/path/round_trips/test_datagrams",
        "probes/path/test_other_programs",
        "probes/path/test_path_ends",
        "probes/path/test_probing_plan",
        "probes/path/wire/test_wire_answers",
        "probes/program/test_refused_changes",
        "probes/test_examples",
        "probes/test_hostile",
        "probes/test_memory",
        "probes/test_netflow",
        "probes/test_old_kernels",
        "probes/test_on_the_wire",
        "probes/test_segments",
        "widgets/terminal/test_compositor",
    ]
)
"""Modules of tests whose cases are much alike: all but the first case of each are slow."""

_ANYWHERE = (
    *("app/api/", "app/commands/", "app/config/", "app/console/", "app/events/", "app/explain/"),
    *("app/exporters/", "app/fleet/", "app/lab/test_capture_files", "app/lab/test_expectation"),
    *("app/outputs/", "app/recording/", "app/store/", "app/tape/", "app/cli/test_policy"),
    *("app/test_", "bpf/test_machine", "bpf/test_quantities"),
    *("probes/config/", "probes/filter/", "probes/monitor/condition/", "probes/monitor/policy/"),
    *("probes/monitor/test_engine", "probes/monitor/test_finding", "probes/monitor/test_sketch"),
    *("probes/names/test_messages", "probes/path/analysis/", "probes/path/events/"),
    *("probes/path/planning/", "probes/path/test_probing_plan", "probes/path/test_slots"),
    *("probes/sockets/test_limits", "probes/sockets/test_resolver", "probes/test_snapshot"),
    "widgets/",
)
"""Folders and modules of tests that .ci/distributions runs on each release with its Python."""
_WITH_KERNEL = (
    *("app/api/test_deployment", "app/api/test_live", "app/api/test_unconfined"),
    *("app/cli/test_policy_test", "app/recording/test_imported"),
    *("app/console/test_pty", "app/console/plain/test_plain_run", "app/tape/test_runs"),
    *("app/console/screens/overview/test_links", "app/console/screens/paths/test_untraced"),
    *("app/console/screens/test_flow_interfaces", "app/fleet/test_live_fleet"),
    *("app/console/screens/programs/test_program_checks", "app/exporters/otlp/test_collector"),
    *("app/exporters/openmetrics/test_p", "app/exporters/openmetrics/test_series"),
    *("app/exporters/ipfix/test_collectors", "app/fleet/test_segment_"),
    "probes/config/test_metric_checks",
)
"""Modules of them that load programs or compile. Tests with the fixture `compiler` do, too."""


def pytest_configure(config: pytest.Config) -> None:
    """Hide the user's settings from the tests, and the tests' state from the user."""
    os.environ["PROBEDECK_CONFIG"] = "none"
    # The search for owners loads programs for a second: its own tests begin it.
    os.environ["PROBEDECK_OWNERS"] = "0"
    # Files of the tests belong to root, also where root is there by sudo.
    os.environ.pop("SUDO_UID", None)
    state = tempfile.TemporaryDirectory(prefix="probedeck-tests-")
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = os.environ["CACHE_DIRECTORY"] = state.name
    # Workers of a session share compiled sources, and so do all sessions of `./probedeck test`.
    if not os.environ.get(compiling.COMPILED):
        compiled = tempfile.TemporaryDirectory(prefix="probedeck-compiled-")
        config.add_cleanup(compiled.cleanup)
        os.environ[compiling.COMPILED] = compiled.name
    compiling.share()
    if times.FILE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(times.Times(os.environ[times.FILE]))
    # The objects of the collection stay: looking for garbage among them takes a third of its time.
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with long modules, then tests that mostly wait: last, they would leave workers idle."""
    first = (f"tests/{name}.py" for name in _FIRST)
    groups: list[str | tuple[str, ...]] = [*first, _WAITING, _LONG]
    tested = set()
    for item in items:
        module, _, rest = item.nodeid.removeprefix("tests/").partition(".py::")
        test = module, rest.partition("[")[0]
        if module in _ALIKE and test in tested:
            item.add_marker("slow")
        compiles = "compiler" in getattr(item, "fixturenames", ())
        if module.startswith(_ANYWHERE) and not (compiles or module.startswith(_WITH_KERNEL)):
            item.add_marker("anywhere")
        tested.add(test)
    items.sort(key=lambda item: [not item.nodeid.startswith(group) for group in groups])


def pytest_collection_finish() -> None:
    """Keep all objects of the collection out of later garbage collections: they stay to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()
    # Rarely: tests make many objects, and hardly any garbage that counting misses.
    gc.set_threshold(20_000, 50, 100)
