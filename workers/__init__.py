"""Sources, probing, decoding and the daemon that streams samples."""
