"""Owners and sockets on screen 3: columns, cells and groups."""
