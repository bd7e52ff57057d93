"""PPO as a plain JAX program in one file, in the style of PureJaxRL: gymnax, flax and optax, and nothing that jaxrl has.

PureJaxRL is not a package, so this program has only its structure: one scan over iterations, each with a scan
over steps of vmapped environments, GAE in a reversed scan, and scans over epochs and shuffled minibatches. It runs in Rejax's
virtual environment, and does not import jaxrl.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from rejax.evaluate import evaluate

from benchmarks.cases import Case
from benchmarks.worker import EPISODES, count_parameters, serve_program


class ActorCritic(nn.Module):
    """Two MLPs with tanh units, for logits and for the value."""

    num_actions: int
    hidden_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: Any) -> tuple[Any, Any]:
        return self.mlp(obs, self.num_actions, 0.01), self.mlp(obs, 1, 1.0)[..., 0]

    def mlp(self, x: Any, num_outputs: int, scale: float) -> Any:
        for size in self.hidden_sizes:
            x = nn.tanh(nn.Dense(size, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
        return nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(scale))(x)


class Step(NamedTuple):
    """A row, or a minibatch of rows."""

    obs: Any
    action: Any
    log_prob: Any
    value: Any
    reward: Any
    done: Any


def log_prob_of(logits: Any, action: Any) -> Any:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


class PlainProgram:
    """``jit(vmap(train))`` over keys and initial parameters.

    The parameters are drawn outside ``vmap``, one seed after another, because the QR decomposition of orthogonal matrices under
    ``vmap`` can deadlock on a CPU with two cores.
    """

    name, version = "plain JAX", importlib.metadata.version("jax")

    def __init__(self, case: Case) -> None:
        self._case = case
        self._env, self._env_params = gymnax.make(case.env)
        self._network = ActorCritic(self._env.num_actions, tuple(case.hidden_sizes))
        s = case.settings
        self._iterations = -(-case.total_steps // case.steps_per_iteration)
        self.total_steps = self._iterations * case.steps_per_iteration
        self._optimizer = optax.chain(optax.clip_by_global_norm(s["max_grad_norm"]), optax.adam(s["learning_rate"], eps=1e-5))
        self._train: Any = None

    # ------------------------------------------------------------------------------------------------------------- training

    def _train_all(self, keys: Any) -> Any:
        return jax.vmap(self._train_one)(jax.lax.map(self._init, keys), keys)

    def _init(self, key: Any) -> Any:
        obs_shape = self._env.observation_space(self._env_params).shape
        return self._network.init(jax.random.fold_in(key, 1), jnp.zeros((1, *obs_shape)))

    def _train_one(self, params: Any, key: Any) -> Any:
        key, reset_key = jax.random.split(key)
        keys = jax.random.split(reset_key, self._case.settings["num_envs"])
        obs, env_state = jax.vmap(self._env.reset, in_axes=(0, None))(keys, self._env_params)
        start = (params, self._optimizer.init(params), env_state, obs, key)
        return jax.lax.scan(self._iteration, start, None, self._iterations)[0][0]

    def _iteration(self, carry: Any, _: None) -> tuple[Any, Any]:
        params, opt_state, env_state, obs, key = carry
        key, rollout_key, update_key = jax.random.split(key, 3)
        (env_state, obs, _), rows = jax.lax.scan(
            lambda actor, _: self._step(params, actor), (env_state, obs, rollout_key), None, self._case.settings["rollout_length"]
        )
        batch = rows, *self._advantages(rows, self._network.apply(params, obs)[1])
        keys = jax.random.split(update_key, self._case.settings["num_epochs"])
        (params, opt_state), loss = jax.lax.scan(lambda c, key: self._epoch(c, batch, key), (params, opt_state), keys)
        return (params, opt_state, env_state, obs, key), loss.mean()

    def _step(self, params: Any, actor: Any) -> tuple[Any, Step]:
        env_state, obs, key = actor
        key, act_key, step_key = jax.random.split(key, 3)
        logits, value = self._network.apply(params, obs)
        action = jax.random.categorical(act_key, logits)
        keys = jax.random.split(step_key, len(obs))
        new_obs, env_state, reward, done, _ = jax.vmap(self._env.step, in_axes=(0, 0, 0, None))(
            keys, env_state, action, self._env_params
        )
        return (env_state, new_obs, key), Step(obs, action, log_prob_of(logits, action), value, reward, done)

    def _advantages(self, rows: Step, last_value: Any) -> tuple[Any, Any]:
        gamma, gae_lambda = self._case.settings["gamma"], self._case.settings["gae_lambda"]

        def backwards(carry: Any, row: Step) -> tuple[Any, Any]:
            advantage, next_value = carry
            alive = 1.0 - row.done
            delta = row.reward + gamma * next_value * alive - row.value
            advantage = delta + gamma * gae_lambda * alive * advantage
            return (advantage, row.value), advantage

        _, advantages = jax.lax.scan(backwards, (jnp.zeros_like(last_value), last_value), rows, reverse=True, unroll=16)
        return advantages, advantages + rows.value

    def _epoch(self, carry: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        order = jax.random.permutation(key, self._case.steps_per_iteration)
        flat = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), batch)
        shuffled = jax.tree.map(lambda x: jnp.take(x, order, axis=0), flat)
        parts = self._case.settings["num_minibatches"]
        return jax.lax.scan(self._minibatch, carry, jax.tree.map(lambda x: x.reshape((parts, -1, *x.shape[1:])), shuffled))

    def _minibatch(self, carry: Any, batch: Any) -> tuple[Any, Any]:
        params, opt_state = carry
        loss, gradient = jax.value_and_grad(self._loss)(params, *batch)
        updates, opt_state = self._optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    def _loss(self, params: Any, rows: Step, advantage: Any, target: Any) -> Any:
        s = self._case.settings
        clip = s["clip_eps"]
        logits, value = self._network.apply(params, rows.obs)
        clipped = rows.value + jnp.clip(value - rows.value, -clip, clip)
        value_loss = 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2).mean()
        ratio = jnp.exp(log_prob_of(logits, rows.action) - rows.log_prob)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage).mean()
        entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
        return policy_loss + s["vf_coef"] * value_loss - s["ent_coef"] * entropy

    # -------------------------------------------------------------------------------------------------------------- program

    def _keys(self, seeds: np.ndarray) -> Any:
        return jax.vmap(jax.random.key)(seeds)

    def compile(self) -> tuple[float, int]:
        keys = self._keys(np.arange(self._case.num_seeds, dtype=np.uint32))
        start = time.perf_counter()
        self._train = jax.jit(self._train_all).lower(keys).compile()
        seconds = time.perf_counter() - start
        return seconds, count_parameters(jax.eval_shape(self._init, jax.random.key(0)))

    def train(self, seeds: np.ndarray) -> tuple[Any, int]:
        params = jax.block_until_ready(self._train(self._keys(seeds)))
        return params, self.total_steps * self._case.num_seeds

    def policies(self, params: Any) -> Any:
        return params

    def evaluate(self, policies: Any, keys: Any) -> Any:
        def mean_return(params: Any, key: Any) -> Any:
            act = lambda obs, key: jnp.argmax(self._network.apply(params, obs)[0])  # noqa: E731
            limit = self._env_params.max_steps_in_episode
            return evaluate(act, key, self._env, self._env_params, EPISODES, limit)[1].mean()

        return jax.jit(jax.vmap(mean_return))(policies, keys)


def main(case_json: str) -> None:
    case = Case(**json.loads(case_json))
    serve_program(PlainProgram(case), case)


if __name__ == "__main__":
    main(*sys.argv[1:])
