"""Costs and verdicts of the sources that know sockets."""
