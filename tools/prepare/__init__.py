"""The command `counterpoise prepare`: tar shards with index and costs, from any source."""
