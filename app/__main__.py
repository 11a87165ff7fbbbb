"""`python -m app`: what the `probedeck` launcher runs."""

from app.cli import main

main()
