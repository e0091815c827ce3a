"""CPU time and memory of a balancer, with stand-ins for its workers and trainers."""
