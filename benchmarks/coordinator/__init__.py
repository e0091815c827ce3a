"""The balancer's coordinator, driven without sockets by stand-ins for workers and ranks."""
