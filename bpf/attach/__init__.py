"""Attaching programs to hooks: links, filters, chains, and the choice of a hook."""
