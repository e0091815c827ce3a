"""The balancer's process: one loop between its sockets and the coordinator."""
