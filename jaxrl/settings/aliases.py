"""Hints for unknown names: the most similar name, and names of jaxrl's settings in other libraries.

The other libraries are CleanRL, Stable-Baselines3, Rejax, PureJaxRL, RLlib, Brax, rlpyt and others. Names that are the same in
jaxrl are not listed.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar, cast

from jaxrl.doors import open_door

F = TypeVar("F", bound=Callable[..., Any])

_ELSEWHERE = {
    "rollout_length": "num_steps n_steps nsteps num_step steps_per_env unroll_length horizon batch_T rollout_steps"
    " rollout_fragment_length num_rollout_steps sample_batch_steps",
    "num_envs": "n_envs nenvs n_env num_actors n_actors num_processes batch_B num_environments env_num num_envs_per_worker"
    " num_envs_per_env_runner",
    "num_workers": "n_workers nworkers num_rollout_workers num_env_runners worker_num actor_num",
    "num_epochs": "update_epochs n_epochs epochs ppo_epoch ppo_epochs num_sgd_iter num_updates_per_batch num_update_epochs",
    "num_minibatches": "batch_size minibatch_size sgd_minibatch_size num_mini_batch n_minibatches nminibatches minibatches",
    "actor_learning_rate": "pi_lr policy_lr actor_lr policy_learning_rate",
    "temperature_learning_rate": "alpha_lr temp_lr ent_lr alpha_learning_rate",
    "learning_rate": "lr critic_lr q_lr qf_lr step_size stepsize",
    "gamma": "discount discount_factor discounting discount_rate",
    "gae_lambda": "lam lambda lambda_ gae gae_lam gae_lmbda lmbda gae_coef gae_gamma",
    "vtrace_lambda": "vtrace_lam lambda_vtrace",
    "rho_bar": "clip_rho_threshold vtrace_clip_rho_threshold clip_rho rho_clip rho_threshold max_rho vtrace_rho_clip"
    " clip_pg_rho_threshold vtrace_clip_pg_rho_threshold",
    "c_bar": "clip_c_threshold vtrace_clip_c_threshold clip_c c_clip c_threshold max_c vtrace_c_clip",
    "clip_eps": "clip_coef clip_range clip_param clip_ratio clip_epsilon clipping_epsilon ratio_clip eps_clip clip cliprange",
    "ent_coef": "ent_coeff entropy_coef entropy_coeff entropy_cost entropy_weight entropy_bonus entropy_beta ent_weight"
    " entropy_loss_coeff entropy_regularization c2 beta",
    "vf_coef": "vf_coeff value_coef value_coeff value_loss_coef value_loss_coeff vf_loss_coeff value_cost baseline_cost"
    " critic_coef c1",
    "surrogate": "loss_type ppo_type use_kl_loss objective",
    "kl_coef": "kl_coeff init_kl_coef init_kl_coeff kl_penalty kl_beta",
    "kl_target": "d_targ kl_targ",
    "stop_kl": "target_kl max_kl kl_threshold kl_cutoff kl_early_stop early_stopping_kl",
    "accumulation_steps": "gradient_accumulation_steps grad_accumulation_steps grad_accum gradient_accumulation accumulate_grad"
    " accumulate_grad_batches num_microbatches",
    "hold_noise": "sde_sample_freq use_sde gsde noise_repeat",
    "max_grad_norm": "grad_clip clip_grad_norm grad_norm clip_grad gradient_clip max_gradient_norm grad_norm_clip"
    " grad_norm_clipping",
    "adam_eps": "adam_epsilon optimizer_eps optimizer_epsilon optim_eps adam_e",
    "normalize_advantages": "norm_adv normalize_advantage normalise_advantages advantage_normalization standardize_advantages",
    "normalize_observations": "norm_obs normalize_obs normalise_observations obs_norm normalize_observation",
    "normalize_rewards": "norm_reward normalize_reward normalise_rewards reward_norm",
    "clip_value_loss": "clip_vloss clip_range_vf vf_clip_param vf_clip clip_value use_clipped_value_loss",
    "anneal": "anneal_lr lr_schedule lr_anneal linear_lr use_linear_lr_decay learning_rate_schedule anneal_learning_rate",
    "total_steps": "total_timesteps timesteps n_timesteps num_timesteps total_env_steps num_env_steps max_steps max_timesteps"
    " total_frames",
    "buffer_size": "replay_size replay_buffer_size buffer_capacity memory_size replay_capacity capacity replay_memory",
    "learning_starts": "fill_buffer min_replay_size warmup warmup_steps start_steps min_buffer_size learn_start start_training"
    " min_steps_learn num_steps_sampled_before_learning_starts memory_warmup_size",
    "replay_ratio": "train_frequency train_freq gradient_steps update_every grad_updates_per_step utd utd_ratio updates_per_step",
    "n_step": "nstep multi_step n_step_return n_step_returns num_step_returns n_step_td update_horizon",
    "hindsight": "goal_selection_strategy replay_strategy her her_strategy future_strategy",
    "hindsight_share": "n_sampled_goal her_ratio replay_k relabel_ratio her_k",
    "prioritized": "prioritised per prioritized_replay prioritised_replay prioritized_replay_buffer use_per"
    " prioritized_experience_replay",
    "priority_exponent": "prioritized_replay_alpha per_alpha alpha_per pri_alpha priority_alpha prioritised_exponent",
    "importance_exponent": "prioritized_replay_beta prioritized_replay_beta0 per_beta beta_per pri_beta_init"
    " importance_sampling_exponent importance_beta priority_weight",
    "target_update_interval": "target_network_frequency target_update_freq target_update_frequency target_update"
    " target_network_update_freq update_target_every target_update_period update_target_steps",
    "tau": "polyak soft_update target_smoothing",
    "epsilon_start": "start_e eps_start exploration_initial_eps initial_epsilon epsilon_init eps_init",
    "epsilon_end": "end_e eps_end exploration_final_eps final_epsilon epsilon_final eps_final min_epsilon epsilon_min",
    "exploration_steps": "exploration_fraction eps_decay epsilon_decay epsilon_decay_steps eps_steps epsilon_timesteps",
    "num_critics": "n_critics num_qs num_q_networks ensemble_size critic_ensemble_size",
    "num_target_critics": "num_min_qs subset_size num_subset in_target_minimization",
    "critic_layer_norm": "use_layer_norm critic_use_layer_norm",
    "critic_dropout": "dropout dropout_rate critic_dropout_rate",
    "num_quantiles": "n_quantiles",
    "huber_threshold": "kappa huber_param huber_loss_parameter",
    "dropped_quantiles": "top_quantiles_to_drop_per_net top_quantiles_to_drop",
    "policy_delay": "policy_frequency policy_freq policy_update_freq actor_update_interval actor_delay",
    "temperature": "alpha init_alpha initial_alpha init_temperature initial_temperature",
    "learn_temperature": "autotune auto_alpha learn_alpha automatic_entropy_tuning auto_entropy",
    "box_entropy": "target_entropy",
    "discrete_entropy": "target_entropy_scale target_entropy_ratio",
    "exploration_noise": "expl_noise explore_noise act_noise action_noise noise_std exploration_sigma",
    "noise": "noise_type exploration_type action_noise_type",
    "target_noise": "policy_noise target_policy_noise target_noise_std",
    "target_noise_clip": "noise_clip target_noise_limit",
    "ou_theta": "theta ornstein_uhlenbeck_theta",
    "critic": "critic_network qf_network",
    "double": "ddqn double_q double_dqn use_double",
    "model": "policy policy_kwargs agent_kwargs network net net_arch hidden_sizes activation actor_critic q_network policy_class"
    " core core_size rnn lstm gru use_lstm use_rnn recurrent hidden_size layer_norm encoder embedding_size",
    "optimizer": "optim optimizer_class tx opt_type",
    "schedules": "lr_scheduler entropy_coeff_scheduler entropy_coeff_schedule",
    "replay": "replay_buffer replay_buffer_class buffer memory",
    "extra_losses": "extra_loss loss loss_fn aux_loss",
    "intrinsic": "rnd curiosity intrinsic_reward exploration_bonus",
    "axis_name": "axis pmap_axis_name",
    "env": "env_id env_name environment gym_id task",
    "algorithm": "algo agent algorithms",
    "seeds": "seed num_seeds n_seeds random_seed",
    "out": "exp_name log_dir logdir tensorboard_log save_path save_dir run_name folder output output_dir",
    "eval_every": "eval_freq eval_frequency eval_interval",
    "eval_episodes": "n_eval_episodes num_eval_episodes",
    "checkpoint_every": "save_freq save_every checkpoint_freq save_interval",
    "wandb": "track wandb_project_name wandb_project use_wandb project",
    "quiet": "verbose verbosity progress_bar",
    "chunk_iterations": "log_interval log_freq log_every",
    "on_chunk": "callback callbacks on_step progress_fn",
    "num_episodes": "n_episodes episodes n_eval_episodes eval_episodes num_eval_episodes",
    "explore": "deterministic stochastic greedy",
    "key": "rng seed rng_key prng_key",
}
"""Name in jaxrl -> names in other libraries."""

_OTHERWISE = {
    "learning_rate": "pi_lr policy_lr actor_lr alpha",
    "vtrace_lambda": "gae_lambda lam lambda lambda_ lmbda",
    "q_lambda": "gae_lambda lam lambda lambda_ lmbda",
    "temperature": "ent_coef ent_coeff entropy_coef entropy_coeff entropy_cost",
    "batch_size": "minibatch_size train_batch_size train_batch_size_per_learner",
}
"""The same, for names that match no allowed name above: for algorithms with one learning rate, with another kind of λ, or with a
temperature instead of an entropy bonus."""

_INSTEAD = [
    (
        "target_network_frequency target_update_interval target_update_freq target_network_update_freq",
        "tau",
        "the targets move by tau at every update, without an interval",
    ),
    (
        "batch_size minibatch_size train_batch_size train_batch_size_per_learner",
        "rollout_length",
        "an iteration learns from num_envs * rollout_length rows",
    ),
    ("action_noise", "temperature", "the policy explores by its own standard deviation"),
    ("vtrace use_vtrace", "vtrace_lambda", "rollouts are always corrected by V-trace"),
    (
        "device cuda use_cuda gpu use_gpu num_gpus torch_deterministic",
        "",
        "JAX uses the accelerator that it finds; set JAX_PLATFORMS=cpu to use the CPU",
    ),
    (
        "reward_clipping clip_rewards clip_reward reward_clip",
        "",
        "use the option of the environment, as in 'envpool:Pong-v5?reward_clip=True'",
    ),
    ("capture_video record_video render render_mode", "", "jaxrl record renders the policies of a run"),
    ("save_model", "", "a run saves its policies in its folder, out"),
]
"""Names in other libraries, a setting that the algorithm must have (or ""), and what jaxrl has instead."""

_NOTES = {
    "num_minibatches": "a number, not a size: each minibatch has num_envs * rollout_length / num_minibatches rows",
    "replay_ratio": "rows drawn per row collected: batch_size * updates per row",
    "hindsight_share": "a fraction of the drawn rows: k sampled goals per desired goal are k / (k + 1)",
    "importance_exponent": "its initial value; with anneal it rises to 1 at total_steps",
    "target_update_interval": "in updates, not environment steps",
    "rho_bar": "one clip for both the temporal difference and the gradient",
    "stop_kl": "the approx_kl above which a minibatch ends the gradient steps of an iteration, without a factor of 1.5",
    "exploration_noise": "its standard deviation, on actions in [−1, 1]; noise='ou' is an Ornstein–Uhlenbeck process",
    "hold_noise": "rows per draw of noise; its standard deviation does not depend on the state",
    "exploration_steps": "rows over which epsilon falls, not a fraction of the run",
    "temperature": "its initial value: it is learnt, as with ent_coef='auto', unless learn_temperature=False",
    "box_entropy": "nats below 0 per dimension: 1 for a target of minus the number of dimensions",
    "discrete_entropy": "a fraction of log n",
    "tau": "the fraction by which the target moves: 1 - polyak",
    "anneal": "True anneals the learning rate to 0 over the run",
    "seeds": "8 means the seeds 0 to 7; a list names them",
    "model": "arguments of the network: {'core': 'gru'} in Python, --model core=gru on the command line",
    "optimizer": "a function such as lambda hp: optax.adamw(hp.learning_rate)",
    "wandb": "the name of the project",
    "explore": "True acts as in training, False greedily",
}
"""Name in jaxrl -> difference in units or meaning, for settings that may differ."""

_SAME_UNITS = {"num_mini_batch", "n_minibatches", "nminibatches", "minibatches", "utd", "utd_ratio"}
"""Names in other libraries whose units are the same, so that they need no note."""


def listed(words: Sequence[str], last: str = "and") -> str:
    """Join words as in ``a, b and c``."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def translate_alias(name: str, allowed: Collection[str]) -> tuple[str, str] | None:
    """Return ``(allowed name, note)`` for a ``name`` from another library, in any case and with dashes, or None if unknown."""
    plain = name.lower().replace("-", "_")
    if plain in allowed:
        return plain, ""
    for here, elsewhere in [*_ELSEWHERE.items(), *_OTHERWISE.items()]:
        if here in allowed and plain in elsewhere.lower().split():
            return here, "" if plain in _SAME_UNITS else _NOTES.get(here, "")
    return None


def instead_of(name: str, allowed: Collection[str]) -> str | None:
    """Return what jaxrl has instead of a setting of other libraries, or None."""
    plain = name.lower().replace("-", "_")
    return next(
        (replacement for names, needed, replacement in _INSTEAD if plain in names.split() and (not needed or needed in allowed)),
        None,
    )


def run_arguments() -> list[str]:
    """Return the arguments of ``jaxrl.run`` that a builder does not take, from its signature."""
    parameters = inspect.signature(open_door("jaxrl", "run")).parameters
    return [name for name in parameters if name not in ("agent", "total_steps", "hyperparams")]


def belongs_to_run(name: str) -> str:
    """Return a sentence to append to a builder's error if the keyword belongs to ``jaxrl.run``, else an empty string."""
    found = translate_alias(name, run_arguments())
    return f" {found[0]} is an argument of jaxrl.run, not of the builder." if found else ""


def nearest(name: Any, allowed: Iterable[str]) -> str:
    """Return a hint to append to an error: `` It is called 'x' here.``, `` Did you mean 'x'?`` or an empty string.

    ``name`` may be of any type.
    """
    if not isinstance(name, str):
        return ""
    allowed = list(allowed)
    if known := translate_alias(name, allowed):
        here, note = known
        return f" It is called {here!r} here{note and f' ({note})'}."
    if replacement := instead_of(name, allowed):
        return f" There is no such setting: {replacement}."
    return similar(name, allowed, 0.5)


def similar(name: str, allowed: Sequence[str], cutoff: float) -> str:
    """Return `` Did you mean 'x'?``, or an empty string if no allowed name is similar."""
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""


def shortened(name: Any, most: int = 200) -> str:
    """Return ``repr(name)`` for an error, without its middle if it is longer than ``most`` characters."""
    shown = repr(name)
    return shown if len(shown) <= most else f"{shown[: most // 2]}…{shown[-most // 2 :]}"


def unknown(kind: str, name: Any, allowed: Sequence[str]) -> ValueError | TypeError:
    """Return the error for a name that is not among those allowed, or is not a string."""
    if not isinstance(name, str):
        return TypeError(f"{kind} {shortened(name)} must be a string. Available: {', '.join(allowed)}.")
    return ValueError(f"unknown {kind} {shortened(name)}.{similar(name[:100], allowed, 0.4)} Available: {', '.join(allowed)}.")


def hint_or(hint: str, listing: str) -> str:
    """Return the hint if there is one, else the listing of allowed names: next to a long listing, a hint would be missed."""
    return hint or f" {listing}"


def suggest_arguments(builder: F) -> F:
    """Wrap ``builder`` with errors for a policy's name, as in ``PPO("MlpPolicy", env)``, and for positional settings."""

    @functools.wraps(builder)
    def checked(*args: Any, **keywords: Any) -> Any:
        name = builder.__name__
        policies = [x for x in (*args, *keywords.values()) if isinstance(x, str) and x.isidentifier() and x.endswith("Policy")]
        if policies:
            raise TypeError(
                f"{name}() takes no {policies[0]!r}: leave it out, {name}(env). The network follows from the observations; "
                "change it with model={'hidden_sizes': (256, 256)}"
            )
        if len(args) > 1:
            raise TypeError(f"{name}() takes only the environment by position; name the settings: {name}(env, learning_rate=…)")
        return builder(*args, **keywords)

    return cast(F, checked)


def suggest_keywords(function: F) -> F:
    """Wrap ``function`` with an error for unknown keywords that names the right keyword, or where the keyword belongs."""
    allowed = list(inspect.signature(function).parameters)

    def hint(name: str, agent: Any) -> str:
        setting = translate_alias(name, getattr(getattr(agent, "hyperparams", None), "_fields", ()))
        if setting and not translate_alias(name, allowed):
            here = setting[0]
            return f" {here} is a setting of the algorithm: pass it to the builder, or in hyperparams={{{here!r}: …}}."
        elsewhere = f" Pass settings of the algorithm to its builder. Allowed: {', '.join(allowed)}."
        return nearest(name, allowed) or elsewhere * ("hyperparams" in allowed)

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in allowed:
                agent = args[0] if args else keywords.get("agent")
                said = hint_or(hint(name, agent), f"Allowed: {', '.join(allowed)}.")
                raise TypeError(f"{function.__name__}() got an unknown keyword {name!r}.{said}")
        return function(*args, **keywords)

    return cast(F, checked)
