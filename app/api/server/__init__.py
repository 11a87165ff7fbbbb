"""The API server: endpoints over a control plane, authentication, connections."""
