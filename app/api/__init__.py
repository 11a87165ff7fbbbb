"""The north-bound API (S1.1): a controller's `ControlPlane` by HTTP, and as a client sees it.

`listener.ApiListener` offers one, `remote.RemoteController` is one that another host offers.
"""
