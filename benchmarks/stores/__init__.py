"""Throughput from an S3 that is far away: 50 ms a request, 20 MB/s a connection."""
