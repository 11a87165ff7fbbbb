"""Another commit's tree beside this one, with this checkout's benches."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bpf.errors import UsageError

ROOT = Path(__file__).parents[2]


def git(*words: str) -> str:
    """Return the output of git in this checkout. Raises CalledProcessError."""
    command = ["git", "-C", str(ROOT), *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def head() -> str:
    """Return this checkout's commit, with a mark if it has changes; empty without git."""
    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results",
                      ":!bench/README.md")  # fmt: skip
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check a commit out for a while. Raises UsageError if the commit is unknown."""
    with tempfile.TemporaryDirectory(prefix="probedeck-bench-") as folder:
        try:
            git("worktree", "add", "--detach", folder, commit)
        except subprocess.CalledProcessError as error:
            raise UsageError(f"no commit {commit!r}: {error.stderr.splitlines()[-1]}") from None
        try:
            yield Path(folder)
        finally:
            git("worktree", "remove", "--force", folder)


@contextmanager
def same_benches(commit: str) -> Iterator[Path]:
    """Check a commit out that measures by the benches of this checkout."""
    with checkout(commit) as tree:
        shutil.rmtree(tree / "bench", ignore_errors=True)
        shutil.copytree(ROOT / "bench", tree / "bench")
        yield tree
