"""``jaxrl.check_env``: checks of an environment, with progress shown on a terminal."""

from __future__ import annotations

from jaxrl.envs import make_env
from jaxrl.envs.checks.check_env import check_env as run_checks
from jaxrl.runtime.console.progress import spinner
from jaxrl.types import Env, EnvLike, HostEnv, Key


def check_env(env: EnvLike, *, key: Key | None = None, steps: int = 50) -> None:
    """Check a custom environment for everything that jaxrl relies on; takes seconds, mostly for compilation.

    First, spaces, shapes and types are checked. A pure ``Env`` is then traced twice (to find hidden state and NumPy randomness),
    batched by ``vmap`` over keys and parameters, and stepped with random actions under jit. A ``HostEnv`` is opened several times
    with two environments: steps must not write into arrays that were returned before, and the row after the end of an episode
    must perform the reset, regardless of its action (checked if an episode ends within ``steps``). Observations must be finite
    and inside their space, rewards must be finite, and equal keys or seeds must give equal results.

    Args:
      env: as passed to builders: an id, an Env, a HostEnv or a Gymnasium class.
      key: a typed key for actions and environments; default: ``jax.random.key(0)``. Host environments get the seed 0.
      steps: number of steps of each environment.

    Raises:
      EnvError: all problems found, each with its fix. Problems of shapes are reported first and alone, because nothing can run
        before they are fixed.
    """
    if not isinstance(env, Env | HostEnv):
        env = make_env(env)
    with spinner(f"check_env {env.name}") as say:
        run_checks(env, key=key, steps=steps, say=say)
