"""The controller: runs, replaces, watches and ends probes."""
