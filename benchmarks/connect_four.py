"""AlphaZero on Connect Four: how often it finds the right move in 1,000 solved positions, and its games against other players."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl
from benchmarks.markdown import Requirement, misses, requirement_table, table
from benchmarks.record import write_result
from benchmarks.scores import train_seconds
from benchmarks.speed import say
from jaxrl.runtime.arena.arena import Arena
from jaxrl.runtime.arena.entrants import Entrant, entrant_of, policy_entrant
from jaxrl.runtime.console.progress import duration
from jaxrl.runtime.system.devices import enable_compilation_cache, request_cpu_devices
from jaxrl.types import Agent, AgentState, StepInput
from tests.helpers.oracles.connect_four import positions, replayed

GAME, PLANNER = "jaxrl:ConnectFour", "mcts:100"
GOOD, PERFECT, POINTS, MINUTES = 0.94, 0.73, 0.9, 45
"""Required shares of good and of perfect moves, and of the points against ``PLANNER``; and the most minutes of training."""
STAGES = 6
"""Parts of the training. Moves are judged after each."""
TRAINED, UNTRAINED, RANDOM = "trained", "untrained", "random"


class Case(NamedTuple):
    """Training, and how its result is judged."""

    settings: dict[str, Any] = {  # noqa: RUF012
        "num_envs": 64,
        "simulations": 32,
        "gamma": 0.99,
        "anneal": True,
        "model": {"encoder": "minatar", "channel_multiplier": 4},
    }
    total_steps: int = 1_000_000
    num_seeds: int = 2
    simulations: int = 64
    """Simulations of a search when moves are judged and games are played."""
    further_simulations: int = 800
    """Simulations of the untrained network's second search."""
    games: int = 256
    """Games of each pair of players, for each seed."""
    num_positions: int = 1_000


class Judged(NamedTuple):
    """Shares of the positions in which a player's move is good, and perfect."""

    good: float
    perfect: float


Judge = Callable[[Entrant], Judged]


def measure(out: Path, work: Path, case: Case = Case(), *, quiet: bool = False) -> dict[str, Any]:  # noqa: B008
    """Train, judge and play; write ``out/connect_four.json``. An interrupted training resumes from ``work``."""
    request_cpu_devices()
    enable_compilation_cache()
    agent, judge = with_simulations(case, case.settings["simulations"]), make_judge(case.num_positions)
    moves, curve = judge_others(judge, case, agent.init(jax.random.key(0))), list[Any]()
    for stage in range(1, STAGES + 1):
        states, history = jaxrl.run(
            agent,
            case.total_steps * stage // STAGES,
            seeds=case.num_seeds,
            hyperparams={"total_steps": case.total_steps},
            out=work,
            eval_every=0,
            tensorboard=False,
            quiet=quiet,
        )
        seeds = [jax.tree.map(lambda x, seed=seed: x[seed], states) for seed in range(case.num_seeds)]
        found = [judge(searching(case, state, case.simulations)) for state in seeds]
        curve.append({"rows": int(history["rows"][-1]), "moves": found})
        say(f"{curve[-1]['rows']:,} rows: " + "; ".join(f"good {each.good:.3f}, perfect {each.perfect:.3f}" for each in found))
    moves |= {TRAINED: found, f"{TRAINED}, network alone": [judge(network_alone(agent, state)) for state in seeds]}
    games = [play(case, state, seed) for seed, state in enumerate(seeds)]
    about = {"case": case._asdict(), "train_seconds": train_seconds(history)}
    result = write_result(out, "connect_four", "mctx", **about, moves=moves, curve=curve, games=games)
    shutil.rmtree(work, ignore_errors=True)
    return result


# --------------------------------------------------------------------------------------------------------------------- players


def with_simulations(case: Case, simulations: int) -> Agent:
    """Return the case's agent with searches of that size. States of one are states of all."""
    return jaxrl.make_alphazero(GAME, **{**case.settings, "simulations": simulations})


def searching(case: Case, state: AgentState, simulations: int) -> Entrant:
    return entrant_of(jaxrl.make_env(GAME), TRAINED, (with_simulations(case, simulations), state))  # type: ignore[arg-type]


def network_alone(agent: Agent, state: AgentState) -> Entrant:
    policy = agent.algorithm.policy(state.learner)
    return policy_entrant(agent.env, agent.algorithm, policy, explore=False, search=False)  # type: ignore[arg-type]


def make_judge(num_positions: int) -> Judge:
    """Return a function that tells how often a player's moves are right in the first solved positions."""
    every, lanes = positions(), jnp.arange(num_positions)
    env_state, obs, _ = replayed(jaxrl.make_env(GAME), every.played[:num_positions])  # type: ignore[arg-type]
    inputs = StepInput(obs, jnp.zeros(num_positions, jnp.int32), jnp.zeros(num_positions), jnp.zeros(num_positions, bool))

    def judge(player: Entrant) -> Judged:
        def act(policy: Any) -> Any:
            carry = player.initial_carry(num_positions)
            return player.act(policy, carry, inputs, env_state, lanes, jax.random.key(0))[1]

        chosen = np.asarray(jax.jit(act)(player.policy))
        return Judged(*(float(right[lanes, chosen].mean()) for right in (every.good, every.perfect)))

    return judge


def judge_others(judge: Judge, case: Case, state: AgentState) -> dict[str, list[Judged]]:
    """Judge the players that were not trained.

    Args:
      state: an initial state.
    """
    env: Any = jaxrl.make_env(GAME)
    players = {
        RANDOM: entrant_of(env, RANDOM, RANDOM),
        PLANNER: entrant_of(env, PLANNER, PLANNER),
        f"{UNTRAINED}, network alone": network_alone(with_simulations(case, case.simulations), state),
        UNTRAINED: searching(case, state, case.simulations),
        f"{UNTRAINED}, {case.further_simulations} simulations": searching(case, state, case.further_simulations),
    }
    return {name: [judge(player)] for name, player in players.items()}


def play(case: Case, state: AgentState, seed: int) -> dict[str, Any]:
    """Play games between a trained policy and the players that were not trained."""
    agent = with_simulations(case, case.simulations)
    players = {TRAINED: (agent, state), UNTRAINED: (agent, agent.init(jax.random.key(seed))), PLANNER: PLANNER, RANDOM: RANDOM}
    return {name: np.asarray(x).tolist() for name, x in jaxrl.arena(GAME, players, games=case.games, seed=seed)._asdict().items()}


# --------------------------------------------------------------------------------------------------------------------- figures


def points(games: Mapping[str, Any], name: str, other: str) -> float:
    """Return the share of the points that a player got against another: wins, and half of the draws."""
    return Arena(games["names"], *(np.array(games[field]) for field in Arena._fields[1:])).score(name, other)


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required; all but the time are means of seeds."""
    good, perfect = (mean(found) for found in zip(*result["moves"][TRAINED], strict=True))
    share, minutes = mean(points(games, TRAINED, PLANNER) for games in result["games"]), result["train_seconds"] / 60
    rows = [("good moves", good, GOOD), ("perfect moves", perfect, PERFECT), (f"points against {PLANNER}", share, POINTS)]
    shares = [(name, f"≥ {asked:g}", f"{found:.3f}", found >= asked) for name, found, asked in rows]
    return [*shares, ("minutes of training, all seeds", f"≤ {MINUTES}", f"{minutes:.0f}", minutes <= MINUTES)]


missed = misses(requirements)


# ---------------------------------------------------------------------------------------------------------------------- report


def connect_four_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    case, games = Case(**result["case"]), result["games"]
    before = {f"{TRAINED}, after {each['rows']:,} rows": each["moves"] for each in result["curve"][:-1]}
    moves = [
        [name, *(_listed(shares, ".3f") for shares in zip(*found, strict=True))]
        for name, found in (result["moves"] | before).items()
    ]
    played = []
    for i, name in enumerate(games[0]["names"]):
        against = "–" if name == TRAINED else _listed([points(each, TRAINED, name) for each in games], ".3f")
        played.append([name, against, _listed([each["ratings"][i] for each in games], ".0f")])
    return "\n\n".join(
        [
            "## AlphaZero on Connect Four",
            f"* `{result['command']}`, {result['date']}\n"
            f"* {result['hardware']['cpu']}, {result['hardware']['cores']} cores, jax {result['versions']['jax']}, "
            f"mctx {result['versions']['mctx']}",
            f"{case.num_seeds} seeds with {case.total_steps:,} rows each, trained in {duration(result['train_seconds'])} by "
            f"self-play with {case.settings['simulations']} simulations a move. Moves are judged in {case.num_positions:,} "
            "solved positions: a move is *good* if it keeps the outcome, and *perfect* if it wins soonest or loses latest. "
            f"Searches have {case.simulations} simulations where nothing else is said. Each value is a seed's.",
            table(["player", "good moves", "perfect moves"], moves),
            f"{case.games} games of each pair for each seed, half of them from each side, after two random moves:",
            table(["player", f"points of *{TRAINED}* against it", "Elo"], played),
            requirement_table(requirements(result)),
        ]
    )


def _listed(values: Iterable[float], spec: str) -> str:
    return ", ".join(format(value, spec) for value in values)
