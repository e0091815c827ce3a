"""One run of an epoch: planning windows, leasing work to workers, detecting poison samples."""
