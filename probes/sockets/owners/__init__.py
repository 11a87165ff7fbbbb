"""The search for owners: questions of a window, knowledge of sockets, answers."""
