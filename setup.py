"""Adds the programs of the built-in probes to a wheel (probes/control/prebuilt.py).

That takes root and bcc. A wheel that is built without them compiles on its host.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# Two builds of one commit are equal: files in the wheel have its time.
_SHOW = ["git", "-C", ROOT, "log", "-1", "--format=%ct"]
if "SOURCE_DATE_EPOCH" not in os.environ and (ROOT / ".git").exists():
    os.environ["SOURCE_DATE_EPOCH"] = subprocess.check_output(_SHOW, text=True).strip()


class BuildWithPrograms(build_py):
    """Copies the packages, and makes the programs beside them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        # The interpreter and the variables of an isolated build hide the packages that probes need.
        own = ROOT / ".venv/bin/python"
        python = own if own.exists() else sys.executable
        folder = Path(self.build_lib, "bpf/prebuilt").absolute()
        command = [python, "-m", "probes.control.prebuilt", folder]
        variables = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        if subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode:
            self.warn("the wheel has no stored programs: its hosts need a compiler")


setup(cmdclass={"build_py": BuildWithPrograms})
