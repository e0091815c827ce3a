"""The command line: demo, worker, balancer, schedule, plan, bench."""
