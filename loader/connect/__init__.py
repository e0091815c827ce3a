"""Connects a loader to its balancer: in this process, embedded, or remote."""
