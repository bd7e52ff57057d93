"""The policy gradient in NumPy: a rollout with every kind of row, and its expected losses and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
from gymnasium import spaces

from jaxrl.rollout.autoreset import first_input
from jaxrl.types import Rollout

T, B, FEATURES = 4, 4, 3


def rollout_case(discrete: bool, seed: int = 0) -> tuple[dict[str, np.ndarray], Rollout]:
    """Return parameters of ``linear_model`` and rows of four environments.

    They have: no end; a termination; a truncation; a reset row at the start and a termination at the end.
    """
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    params = {"w": normal(FEATURES, 4 if discrete else 2), "v": normal(FEATURES), "log_std": 0.3 * normal(2)}
    terminated, truncated, valid = np.zeros((T, B), bool), np.zeros((T, B), bool), np.ones((T, B), bool)
    terminated[1, 1] = truncated[2, 2] = terminated[3, 3] = True
    valid[2, 1] = valid[3, 2] = valid[0, 3] = False
    action = rng.integers(4, size=(T, B)).astype(np.int32) if discrete else normal(T, B, 2)
    rollout = Rollout(
        inputs=first_input(normal(T + 1, B, FEATURES), spaces.Discrete(4), B),
        action=action,
        reward=np.where(valid, normal(T, B), np.float32(0)),
        terminated=terminated,
        truncated=truncated,
        extras={},
        valid=valid,
        carry=(),
        env_id=np.arange(B, dtype=np.int32),
        version=np.zeros(B, np.int32),
    )
    return params, rollout


def values(params: Any, rollout: Rollout) -> np.ndarray:
    """Compute V of all inputs, f64[T + 1, B]."""
    return np.asarray(rollout.inputs.obs, np.float64) @ np.asarray(params["v"], np.float64)


def episodes(rollout: Rollout) -> list[tuple[int, int, int]]:
    """Return (environment, first row, row after the last) of each run of valid rows."""
    found = []
    for b in range(B):
        start = None
        for t in range(T + 1):
            inside = t < T and rollout.valid[t, b]
            if inside and start is None:
                start = t
            if start is not None and (not inside or (rollout.terminated | rollout.truncated)[t, b]):
                found.append((b, start, t + 1 if inside else t))
                start = None
    return found


def log_probs(discrete: bool, params: Any, rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
    """Compute log π of the actions and the policy's entropy, f64[T, B]."""
    out = np.asarray(rollout.inputs.obs[:-1], np.float64) @ params["w"]
    if discrete:
        log_p = out - np.log(np.exp(out).sum(-1, keepdims=True))
        log_prob = np.take_along_axis(log_p, rollout.action[..., None], -1)[..., 0]
        entropy = -(np.exp(log_p) * log_p).sum(-1)
    else:
        frozen = scipy.stats.norm(out, np.exp(np.broadcast_to(params["log_std"], out.shape)))
        log_prob, entropy = frozen.logpdf(rollout.action).sum(-1), frozen.entropy().sum(-1)
    return log_prob, entropy


def losses(
    discrete: bool, params: Any, rollout: Rollout, weight: np.ndarray, target: np.ndarray, where: np.ndarray, hp: Any
) -> dict[str, float]:
    """Compute −E[w·log π] + vf_coef·½ E[(G − V)²] − ent_coef·E[H] over the rows of a mask, in double precision."""
    log_prob, entropy = log_probs(discrete, params, rollout)
    error = (target - values(params, rollout)[:-1])[where]
    policy_loss, value_loss = -(weight * log_prob)[where].mean(), 0.5 * (error**2).mean()
    return {
        "total": policy_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy[where].mean(),
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy[where].mean(),
        "losses/explained_variance": 1 - error.var() / target[where].var(),
    }


def standardized(x: np.ndarray, where: np.ndarray) -> np.ndarray:
    return (x - x[where].mean()) / np.sqrt(x[where].var() + 1e-8)


def slope(function: Callable[[Any], float], params: dict[str, np.ndarray], step: float = 1e-5) -> dict[str, np.ndarray]:
    """Compute the gradient of a function of parameters by central differences in double precision."""
    params = {name: np.asarray(x, np.float64) for name, x in params.items()}
    gradient = {name: np.zeros_like(x) for name, x in params.items()}
    for name, x in params.items():
        for index in np.ndindex(x.shape):
            both = []
            for sign in (1, -1):
                moved = x.copy()
                moved[index] += sign * step
                both.append(function({**params, name: moved}))
            gradient[name][index] = (both[0] - both[1]) / (2 * step)
    return gradient


def peng_returns(rollout: Rollout, q: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Compute returns (Gallici et al. 2024, algorithm 1), row by row from the last."""
    found, best = np.zeros((T, B)), q.max(-1)
    for b in range(B):
        for t in reversed(range(T)):
            if not rollout.valid[t, b]:
                continue
            goes_on = t + 1 < T and rollout.valid[t + 1, b] and not rollout.truncated[t, b]
            beyond = lam * found[t + 1, b] + (1 - lam) * best[t + 1, b] if goes_on else best[t + 1, b]
            found[t, b] = rollout.reward[t, b] + (0 if rollout.terminated[t, b] else gamma * beyond)
    return found
