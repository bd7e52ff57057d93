"""Options of all algorithms: settings that belong together, as in ``make_dqn(env, head=C51(v_max=200), replay=Prioritized())``.

``jaxrl.settings.options`` says how they are written in data, flags and sweep files.
"""

from jaxrl.algorithms.common.bootstrapping import Double, Greedy, Munchausen
from jaxrl.algorithms.common.constraints.lagrangian import Lagrangian
from jaxrl.algorithms.common.critics.distributional import Atoms, Quantiles
from jaxrl.algorithms.common.critics.ensemble import Ensemble
from jaxrl.algorithms.common.gumbel_softmax import GumbelSoftmax
from jaxrl.algorithms.common.offline.advantage_weights import Binary, Expectile, Exponential, Sampled
from jaxrl.algorithms.common.offline.conservative import CQL, Conservative, LagrangeCQL
from jaxrl.algorithms.common.offline.policy_cloning import Cloning, ReBRAC
from jaxrl.algorithms.common.optimistic_exploration import Optimistic
from jaxrl.algorithms.common.planning.dynamics import EnsembleDynamics, SimulatorDynamics
from jaxrl.algorithms.common.planning.planners import CEM, MPPI, RandomShooting
from jaxrl.algorithms.common.planning.tree_search import PUCT, Gumbel
from jaxrl.algorithms.common.ppo_objectives import Clip, Drift, KLPenalty
from jaxrl.algorithms.common.q_heads import C51, IQN, QR, HLGauss, Scalar
from jaxrl.algorithms.common.teams.value_decomposition import QMIX, VDN
from jaxrl.algorithms.common.temperature import FixedTemperature, LearnedTemperature
from jaxrl.algorithms.common.value_rescaling import Rescale
from jaxrl.evolution.evosax_adapter import Evosax
from jaxrl.evolution.noise import LowRankNoise, NormalNoise, SignNoise
from jaxrl.evolution.strategies import ARS, OpenAI
from jaxrl.exploration.options import OU, Gaussian, Noisy, Spread
from jaxrl.replay.options import Episode, Final, Future, Prioritized, Recent, Sequence, Shift, Uniform

__all__ = [
    "ARS",
    "C51",
    "CEM",
    "CQL",
    "IQN",
    "MPPI",
    "OU",
    "PUCT",
    "QMIX",
    "QR",
    "VDN",
    "Atoms",
    "Binary",
    "Clip",
    "Cloning",
    "Conservative",
    "Double",
    "Drift",
    "Ensemble",
    "EnsembleDynamics",
    "Episode",
    "Evosax",
    "Expectile",
    "Exponential",
    "Final",
    "FixedTemperature",
    "Future",
    "Gaussian",
    "Greedy",
    "Gumbel",
    "GumbelSoftmax",
    "HLGauss",
    "KLPenalty",
    "LagrangeCQL",
    "Lagrangian",
    "LearnedTemperature",
    "LowRankNoise",
    "Munchausen",
    "Noisy",
    "NormalNoise",
    "OpenAI",
    "Optimistic",
    "Prioritized",
    "Quantiles",
    "RandomShooting",
    "ReBRAC",
    "Recent",
    "Rescale",
    "Sampled",
    "Scalar",
    "Sequence",
    "Shift",
    "SignNoise",
    "SimulatorDynamics",
    "Spread",
    "Uniform",
]
