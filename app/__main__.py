"""`python -m app`: run by the `probedeck` launcher."""

import signal

# During imports, Ctrl-C ends the process: there is nothing to clean up.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from app.cli.main import program  # noqa: E402

program()
