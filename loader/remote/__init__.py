"""A trainer and its balancer: elsewhere, or one that processes which share ranks have here."""
