"""Figures of the theory: exact learning curves, optimal protocols, and the follow-up's models."""
