"""What every integration must do on the same losses: what the policy does by itself."""

from replan.online import FocusThenReplay

BATCH = 5


def losses_after(batches):
    """Return losses of two tasks that meet after 12 batches."""
    return {0: 0.25, 1: 0.25 + 0.0625 * (12 - batches)}


def policy_by_hand(batches, policy=None):
    """Return the counts of each task by batch, and the policy, told losses every other batch."""
    policy = policy or FocusThenReplay(1, [0], order="random", seed=1)
    counts = []
    for number in range(1, batches + 1):
        counts.append(policy.next_counts(BATCH).tolist())
        if number % 2 == 0:
            policy.observe(losses_after(number))
    return counts, policy
