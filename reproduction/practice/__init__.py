"""Replay in practice: strategies in PyTorch and Avalanche, each at its own best settings."""
