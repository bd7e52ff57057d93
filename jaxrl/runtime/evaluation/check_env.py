"""``jaxrl.check_env``: the check of an environment, with a word on a terminal on what it is at."""

from __future__ import annotations

from jaxrl.envs import make_env
from jaxrl.envs.checks.check_env import check_env as run_checks
from jaxrl.runtime.console.progress import spinner
from jaxrl.types import Env, EnvLike, HostEnv, Key


def check_env(env: EnvLike, *, key: Key | None = None, steps: int = 50) -> None:
    """Run an environment of your own through everything that jaxrl relies on; seconds, most of them compiling.

    After a look at spaces, shapes and types, a pure ``Env`` is traced twice (hidden state, NumPy's randomness), batched by
    ``vmap`` over keys and parameters, and stepped with random actions under jit. A ``HostEnv`` is opened several times with two
    environments: steps must not write into arrays that were returned before, and the row after an end must be spent on the
    reset, whatever its action (seen if an episode ends within ``steps``). Observations must be finite and inside their space,
    rewards finite, and equal keys or seeds must give equal results.

    Args:
      env: what builders take: an id, an Env, a HostEnv or a Gymnasium class.
      key: a typed key for actions and environments; by default ``jax.random.key(0)``. Host environments get the seed 0.
      steps: how many steps each environment takes.

    Raises:
      EnvError: all problems found, each with its fix. Those of shape come first, alone: nothing can run before they are solved.
    """
    if not isinstance(env, Env | HostEnv):
        env = make_env(env)
    with spinner(f"check_env {env.name}") as say:
        run_checks(env, key=key, steps=steps, say=say)
