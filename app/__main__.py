"""`python -m app`: what the `probedeck` launcher runs."""

import signal

# Imports take half a second, in which Ctrl-C has nothing to clean up: let it end the process.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from app.cli.main import main  # noqa: E402

main()
