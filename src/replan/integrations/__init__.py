"""Policies in the training loops of others: PyTorch, Lightning, Avalanche.

Each has a module of its own, which needs the framework: `replan.integrations.torch`,
`replan.integrations.lightning`, `replan.integrations.avalanche`.
"""
