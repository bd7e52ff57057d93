"""One agent over several devices by hand: name the axis, split the environments over the devices, and pmap the step.

``jaxrl.parallel.data_parallel`` does the same with shard_map in one call. As a script, this makes two CPU devices first.

python examples/pmap.py
"""

import jax

import jaxrl
from jaxrl.parallel import join_state, split_state


def main(iterations: int = 50) -> None:
    devices = jax.local_device_count()
    ppo = jaxrl.make_ppo("CartPole-v1", num_envs=8 * devices, axis_name="devices")  # num_envs counts over all devices
    state = split_state(ppo, ppo.init(jax.random.key(0)), devices)  # [devices, ...]: environments are split, the rest is copied
    step = jax.pmap(ppo.step, axis_name="devices")
    for _ in range(iterations):
        state, metrics = step(state)
    whole = join_state(ppo, state)
    returns = metrics["charts/episodic_return"]  # already reduced over devices: the same on each
    print(f"{devices} devices, {int(whole.iteration)} iterations, return {float(returns.sum[0] / returns.count[0]):.1f}")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)  # before anything uses JAX
    main()
