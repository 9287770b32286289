"""Specs from groups of options, files and overrides: Hydra composes, the one JobSpec checks.

    compose_spec(["task=sft", "model=smollm2", "training.learning_rate=1e-4"], Places())
    compose_spec(["spec.json", "training.max_steps=20"], Places())

What is not right is a ConfigError, whose problems say the field, the nearest known name and the
file or override that it came from.
"""

from polar.config.compose import Composed, compose_spec
from polar.config.errors import ConfigError, ConfigProblem
from polar.config.places import Places
from polar.config.sweep import compose_sweep

__all__ = [
    "Composed",
    "ConfigError",
    "ConfigProblem",
    "Places",
    "compose_spec",
    "compose_sweep",
]
