"""ZeroMQ sockets, keys and authentication, for the balancer and its peers."""
