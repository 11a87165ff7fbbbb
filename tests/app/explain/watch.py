"""`explain` for several filters in one run: prints the explanations and the warnings as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import numpy as np

from tests.support import compiling

compiling.share()  # before other modules import the compiler

# ruff: noqa: E402
from app.console.live.state import LiveState
from app.console.screens.flows.owners import RowOwner
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.model import Paths
from app.console.screens.paths.rows import path_state
from app.run.explanation import _Watch
from app.run.item_loop import ItemLoop
from app.run.options import Options
from app.run.spec import RunSpec
from app.run.totals import Totals
from bpf.errors import ProbedeckError
from probes.control.controller import Controller
from probes.flow.grouping import GROUP
from probes.flow.options import FlowOptions
from probes.snapshot import Event, Snapshot
from probes.sockets.records import SOCKETS_TABLE, Limit, Owned


def elsewhere(conversation: Any, far: str) -> dict[str, str]:
    """Return the verdicts of screen 3 and of the last table with the conversation, a row of dtype
    GROUP, and the state of its path on screen 2."""
    talks, owners = np.array([conversation], GROUP), frame.owners
    tables = (each for each in controller.history.snapshots() if each.metric == SOCKETS_TABLE)
    limits = [Owned(talks, each.rows, owners.owners).field("limit")[0] for each in tables]
    owned = Owned(talks, owners.sockets, owners.owners)
    return {
        "flows": RowOwner(owned, int(owned.at[0])).limited.label,
        "table": Limit(next((int(each) for each in reversed(limits) if each), 0)).label,
        "paths": path_state(paths, PathKey(far))[0],
    }


interface, router, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
filters = json.loads(sys.argv[4])
# Tracing begins before the traffic: its programs take some seconds to compile.
spec = RunSpec(interface, Options(flow=FlowOptions(0.5), cpu=sys.argv[5]), trace=(router,))
controller, live, paths = Controller(), LiveState(), Paths()
loop = ItemLoop(controller)
warnings, found = [], {}
with loop.running(controller, spec, Totals()):
    controller.switch("sockets", True)
    controller.switch("drops", True)
    watches = {name: _Watch(controller, spec, text, seconds) for name, text in filters.items()}
    left = list(watches.values())
    print(flush=True)
    for item in loop.items():
        live.take(item)
        if isinstance(item, Event) and item.severity != "info":
            warnings.append(item.text)
        if isinstance(item, Snapshot) and item.probe == "flow":
            left = [watch for watch in left if not watch.take(item)]
            if not left:
                break
    frame = live.frame()
    paths.take(frame.paths, controller.traced())
    for name, watch in watches.items():
        try:
            found[name] = asdict(watch.explanation())
            found[name]["elsewhere"] = elsewhere(watch._conversation, found[name]["flow"]["far"])
        except ProbedeckError as error:
            found[name] = {"sentence": str(error), "where": {"text": ""}, "why": {"limit": ""}}
print(json.dumps({"found": found, "warnings": warnings}))
