"""Hyperparameters that several algorithms have: their ranges and descriptions, declared once.

A field has its description in its type, ``gamma: Gamma = 0.99``. A docstring below the field replaces it.
"""

from __future__ import annotations

from typing import Annotated

from jaxrl.settings.validation import Range

_UNIT, _POSITIVE, _NON_NEGATIVE = Range(0, 1), Range(0, open_low=True), Range(0)

LearningRate = Annotated[float, _NON_NEGATIVE, "Adam's step size; 0 disables learning, as a control."]
ActorLearningRate = Annotated[float, _NON_NEGATIVE, "Learning rate of the policy."]
Gamma = Annotated[float, _UNIT, "Discount per step."]
EntCoef = Annotated[float, _NON_NEGATIVE, "Weight of the entropy bonus."]
VfCoef = Annotated[float, _NON_NEGATIVE, "Weight of the value loss."]
MaxGradNorm = Annotated[float, _POSITIVE, "Clip the gradient to this global norm."]
AdamEps = Annotated[float, _POSITIVE, "Adam's ε."]
Tau = Annotated[
    float, Range(0, 1, open_low=True), "Step of a target network towards its network at each change, as a fraction; 1 copies."
]
EpsilonStart = Annotated[float, _UNIT, "Probability of a random action at the start."]
EpsilonEnd = Annotated[float, _UNIT, "Probability of a random action after exploration_steps."]
ExplorationSteps = Annotated[float, _POSITIVE, "Rows, after the warm-up, over which epsilon falls linearly."]
ExplorationNoise = Annotated[
    float,
    _NON_NEGATIVE,
    "Standard deviation of the noise on actions in [−1, 1]; with ``OU``, of the noise added to the process at each row.",
]
TotalSteps = Annotated[
    float,
    Range(0, integral=True),
    "Rows per seed of the whole run, for ``anneal``; 0 if unknown. ``run`` and ``make_train`` set it to their length.",
]
