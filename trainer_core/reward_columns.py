"""Which columns of a row rewards read, by their names in prepared data."""

from collections.abc import Sequence

from trainer_core.spec.rewards import ExactMatch, Keywords, Reward, RewardModel

PREFIX = "given_"
"""Before a column's name in prepared data, so that no name of the user's means anything there."""
ASKED = "asked:messages"
"""The prompt before it was rendered, as JSON: a reward model has a template of its own."""


def columns_of(rewards: Sequence[Reward]) -> tuple[list[str], bool]:
    """Names of the columns, and whether the prompt itself is read."""
    names = [
        reward.column
        for reward in rewards
        if isinstance(reward, ExactMatch | Keywords) and reward.column is not None
    ]
    asked = any(isinstance(reward, RewardModel) for reward in rewards)
    return list(dict.fromkeys(names)), asked
