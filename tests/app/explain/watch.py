"""`explain` for several filters in one run: prints the explanations and the warnings as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from app.cli.options import INGRESS
from app.run.explanation import _Watch
from app.run.item_loop import ItemLoop
from app.run.spec import RunSpec
from app.run.totals import Totals
from bpf.errors import ProbedeckError
from probes.control.controller import Controller
from probes.snapshot import Event, Snapshot

interface, router, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
filters = json.loads(sys.argv[4])
# Tracing begins before the traffic: its programs take some seconds to compile.
spec = RunSpec(
    interface, interval=0.5, ingress=INGRESS["auto"], capture="", duration=None, trace=(router,)
)
controller = Controller()
loop = ItemLoop(controller)
warnings, found = [], {}
with loop.running(controller, spec, Totals()):
    controller.switch("sockets", True)
    controller.switch("drops", True)
    watches = {name: _Watch(controller, spec, text, seconds) for name, text in filters.items()}
    left = list(watches.values())
    print(flush=True)
    for item in loop.items():
        if isinstance(item, Event) and item.severity != "info":
            warnings.append(item.text)
        if isinstance(item, Snapshot) and item.probe == "flow":
            left = [watch for watch in left if not watch.take(item)]
            if not left:
                break
    for name, watch in watches.items():
        try:
            found[name] = asdict(watch.explanation())
        except ProbedeckError as error:
            found[name] = {"sentence": str(error), "where": {"text": ""}, "why": {"limit": ""}}
print(json.dumps({"found": found, "warnings": warnings}))
