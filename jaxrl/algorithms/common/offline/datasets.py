"""Parts of algorithms that learn from a dataset: the statistics of its observations, and the scale of its rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl.algorithms.common.critics.ensemble import ActorCriticSetup
from jaxrl.algorithms.common.critics.updates import CriticBatch
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.replay.dataset import info_of
from jaxrl.rollout.running_statistics import Statistics, normalize_inputs
from jaxrl.types import PyTree

RETURN_RANGE = 1000.0
"""Difference of the highest and the lowest return of the data after scaling (Kostrikov et al. 2022, their code for MuJoCo)."""


def check_has_data(builder: str, keywords: Mapping[str, Any]) -> None:
    """Raise TypeError unless a builder was given a dataset."""
    if keywords.get("data") is None:
        raise TypeError(
            f"{builder}() learns from a dataset alone: give data=jaxrl.load_dataset(FILE), or --data FILE on the command line"
        )


def data_statistics(setup: AlgorithmSetup[Any]) -> Statistics | tuple[()]:
    """Return the moments of the data's observations, which a learner keeps as they are; () without data or normalisation."""
    if setup.data is None or not setup.config.normalize_observations:
        return ()
    return Statistics(info_of(setup.data).running_moments(), ())


def reward_scale(setup: ActorCriticSetup[Any]) -> float:
    """Return the factor with which the returns of the data's episodes span ``RETURN_RANGE``; 1 if they are all the same."""
    if setup.data is None:
        return 1.0
    low, high = info_of(setup.data).returns
    return RETURN_RANGE / (high - low) if high > low else 1.0


def seen(statistics: PyTree, update: CriticBatch, scale: float = 1.0) -> CriticBatch:
    """Return a batch with normalised observations, and rewards times ``scale``."""
    if statistics == () and scale == 1.0:
        return update
    batch = update.batch
    inputs, following = (normalize_inputs(statistics, x) for x in (batch.inputs, batch.next_inputs))
    return update._replace(batch=batch._replace(inputs=inputs, next_inputs=following, reward=batch.reward * scale))
