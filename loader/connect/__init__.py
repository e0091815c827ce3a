"""How a loader reaches its balancer: in this process, embedded, or remote."""
