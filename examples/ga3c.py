"""GA3C (Babaeizadeh et al. 2017): workers only step environments, and one learner acts for all of them, in batches.

Acting continues during updates, so rows are of older parameters than those that learn. GA3C is A3C without a correction for that.
Here it is a scheme of IMPALA, whose V-trace corrects it.

python examples/ga3c.py
jaxrl train impala --env gymnasium:Acrobot-v1 --scheme ga3c --num-workers 4 --num-envs 32 --out runs/ga3c
"""

import numpy as np

import jaxrl


def main(total_steps: int = 100_000, num_workers: int = 2) -> None:
    agent = jaxrl.make_impala(
        "gymnasium:CartPole-v1",
        num_envs=16,  # of all workers; the learner's batch of observations
        rollout_length=16,
    )
    states, history = jaxrl.run(agent, total_steps, scheme="ga3c", num_workers=num_workers, eval_every=0)
    returns = history["charts/episodic_return"][:, 0]  # of training
    returns = returns[np.isfinite(returns)]
    updates, lag = int(states.iteration[0]), np.nanmean(history["charts/policy_lag"])
    print(f"{updates} updates from rollouts of {num_workers} workers, whose parameters were {lag:.1f} updates old on average")
    print(f"mean return of {returns[:3].mean():.0f} at first, {returns[-3:].mean():.0f} after {total_steps:,} steps")


if __name__ == "__main__":
    main()
