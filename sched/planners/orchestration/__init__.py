"""Disaggregated model orchestration: GPUs, TP, DP, PP, VPP for each module (DistTrain)."""
