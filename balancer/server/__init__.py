"""The balancer's process: one loop between its sockets and its jobs."""
