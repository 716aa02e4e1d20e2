"""Replay policies in training loops of others: PyTorch, Lightning, Avalanche.

Each is a module of its own, which needs its framework: `replan.integrations.torch`,
`replan.integrations.lightning`, `replan.integrations.avalanche`.
"""
