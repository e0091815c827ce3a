"""What a loop has waited for and delivered so far: counted, kept in a file, given to Prometheus."""
