"""Names of algorithms in other libraries."""

from __future__ import annotations

ELSEWHERE: dict[str, tuple[str, str]] = {
    "rainbow": (
        "dqn",
        "--head c51 --model dueling=True --noise noisy --epsilon-start 0 --epsilon-end 0 --n-step 3 --replay prioritized "
        "--replay.exponent 0.5 --learning-rate 1e-3 --adam-eps 1.5e-4",
    ),
    "c51": ("dqn", "--head c51"),
    "qrdqn": ("dqn", "--head qr"),
    "iqn": ("dqn", "--head iqn"),
    "hlgauss": ("dqn", "--head hl_gauss"),
    "d4pg": ("ddpg", "--critics atoms --n-step 5 --replay prioritized"),
    "dpo": ("ppo", "--surrogate drift"),
    "rpo": ("ppo", "--mean-noise 0.5"),
    "ppolag": ("ppo", "--constraint lagrangian --constraint.kp 0 --constraint.kd 0"),
    "cppopid": ("ppo", "--constraint lagrangian"),
    "ddqn": ("dqn", "--bootstrap double"),
    "duelingdqn": ("dqn", "--model dueling=True"),
    "noisydqn": ("dqn", "--noise noisy"),
    "per": ("dqn", "--replay prioritized"),
    "apex": ("dqn", "--replay prioritized --exploration spread --scheme apex"),
    "apexdqn": ("dqn", "--replay prioritized --exploration spread --scheme apex"),
    "openaies": ("es", ""),
    "td3bc": ("td3", "--cloning td3_bc"),
    "rebrac": ("td3", "--cloning rebrac --critic layer_norm=True"),
    "cql": (
        "sac",
        "--conservative cql --model hidden_sizes=256,256,256 --learning-rate 3e-4 --actor-learning-rate 1e-4 "
        "--temperature.learning-rate 1e-4",
    ),
    "calql": ("sac", "--conservative cql --conservative.calibrated True"),
    "cqlrho": ("sac", "--conservative cql --conservative.weighted False"),
    "discretecql": ("dqn", "--conservative cql"),
    "awac": ("iql", "--value sampled --weight.beta 1"),
    "crr": ("iql", "--value sampled --weight binary"),
    "decisiontransformer": ("dt", ""),
    "rvs": ("dt", "--model core=None"),
    "10bc": ("bc", "--best 0.1"),
    "behaviorcloning": ("bc", ""),
    "behaviourcloning": ("bc", ""),
    "ars": ("es", "--strategy ars"),
    "drqn": ("r2d2", ""),
    "ppo2": ("ppo", ""),
    "ippo": ("ppo", ""),
    "ia2c": ("a2c", ""),
    "idqn": ("dqn", ""),
    "pqnvdn": ("pqn", "--decomposition vdn"),
    "qmix": (
        "r2d2",
        "--decomposition qmix --replay.exponent 0 --replay.importance-exponent 0 --rescale none --n-step 1 "
        "--target-update-interval 200 --learning-rate 5e-4 --max-grad-norm 10 --exploration-steps 50000",
    ),
    "vdn": ("r2d2", "--decomposition vdn --replay.exponent 0 --replay.importance-exponent 0 --rescale none --n-step 1"),
    "coma": ("a2c", "--counterfactual --gae-lambda 0.8 --max-grad-norm 10"),
    "maddpg": (
        "ddpg",
        "--joint-actions --model hidden_sizes=64,64 --critic hidden_sizes=64,64 privileged=True --num-envs 4 --rollout-length 25 "
        "--batch-size 1024 --buffer-size 1000000 --replay-ratio 10.24 --learning-rate 1e-2 --actor-learning-rate 1e-2 "
        "--gamma 0.95 --tau 0.01 --max-grad-norm 0.5",
    ),
    "matd3": ("td3", "--joint-actions --critic privileged=True"),
    "mappo": (
        "ppo",
        "--model critic=privileged --normalize-values --surrogate clip --surrogate.value-loss True --num-epochs 10 "
        "--num-minibatches 1 --learning-rate 7e-4 --max-grad-norm 10",
    ),
    "ppocontinuous": ("ppo", ""),
    "recurrentppo": ("ppo", "--model core=lstm"),
    "ppolstm": ("ppo", "--model core=lstm"),
    "ddppo": ("ppo", "--scheme ddppo"),
    "a3c": ("a2c", "--scheme a3c"),
    "ga3c": ("impala", "--scheme ga3c"),
    "vpg": ("reinforce", ""),
    "policygradient": ("reinforce", ""),
    "her": ("sac", "--hindsight future"),
    "tqc": ("sac", "--critics quantiles --critics.size 5 --actor-value mean"),
    "redq": ("sac", "--critics.size 10 --critics.subset 2 --actor-value mean --replay-ratio 5120 --policy-delay 20"),
    "droq": ("sac", "--critic dropout=0.01 layer_norm=True --actor-value mean --replay-ratio 5120 --policy-delay 20"),
}
"""Algorithms of other libraries that are settings here: name without punctuation -> algorithm and its command-line flags."""


def known_as(name: str) -> tuple[str, str] | None:
    """Return ``(algorithm, flags)`` for the name of an algorithm in another library, or None if it is unknown."""
    return ELSEWHERE.get("".join(filter(str.isalnum, name.lower())))
