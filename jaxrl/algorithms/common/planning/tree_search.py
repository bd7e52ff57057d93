"""Tree search with a simulator, by mctx (``pip install "jaxrl[search]"``): options and one search per environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.distributions import Categorical, sample_each
from jaxrl.models import split_mask
from jaxrl.models.heads import masked
from jaxrl.settings.options import Option, option
from jaxrl.settings.packages import import_package
from jaxrl.settings.validation import Count, NonNegative, Positive, Unit
from jaxrl.types import Array, Key, PyTree

RANDOM_MOVES = 2**31 - 1
"""Number of the random stream of random moves, far from those that a search folds in."""


class Found(NamedTuple):
    """Result of a search."""

    action: Array
    """i32[]"""
    policy: Array
    """f32[n]: the improved policy, to learn from."""
    value: Array
    """f32[]: the value that the search found for the chosen action."""


class Node(NamedTuple):
    """Outputs of a network for a position: prior logits f32[n] and a value f32[]."""

    logits: Array
    value: Array


Expand = Callable[[Key, PyTree, Array], tuple[PyTree, Array, Array, Node]]
"""(key, position, action) -> (next position, reward f32[], discount f32[], node), of one environment."""


@option("gumbel")
class Gumbel(Option):
    """Search by sequential halving of sampled actions (Danihelka et al. 2022), which improves a policy with few simulations."""

    considered: Count = 16
    """Actions at the root that are considered, at most."""
    value_scale: Positive = 0.1
    """c_scale: weight of the values beside the logits (equation 8)."""
    visit_offset: NonNegative = 50.0
    """c_visit, added to the largest visit count in that weight."""

    def search(self, root: Any, recurrent: Any, key: Key, simulations: int, invalid: Any, explore: bool) -> Any:
        mctx = package()
        values = partial(mctx.qtransform_completed_by_mix_value, value_scale=self.value_scale, maxvisit_init=self.visit_offset)
        return mctx.gumbel_muzero_policy(
            (),
            key,
            root,
            recurrent,
            simulations,
            invalid,
            qtransform=values,
            max_num_considered_actions=self.considered,
            gumbel_scale=float(explore),
        )


@option("puct")
class PUCT(Option):
    """Search by upper confidence bounds with priors (Silver et al. 2018; Schrittwieser et al. 2020, equation 2). In training,
    noise is added to the priors of the root, and actions are drawn in proportion to their visits."""

    dirichlet_alpha: Positive = 0.3
    """α of the Dirichlet noise; about 10 divided by the number of allowed moves."""
    dirichlet_fraction: Unit = 0.25
    """Weight of the noise beside the prior."""
    c_init: NonNegative = 1.25
    """c₁: weight of the prior beside the values."""
    c_base: Positive = 19652.0
    """c₂: number of visits at which the prior's weight begins to grow."""

    def search(self, root: Any, recurrent: Any, key: Key, simulations: int, invalid: Any, explore: bool) -> Any:
        mctx = package()
        return mctx.muzero_policy(
            (),
            key,
            root,
            recurrent,
            simulations,
            invalid,
            qtransform=mctx.qtransform_by_parent_and_siblings,
            dirichlet_fraction=self.dirichlet_fraction if explore else 0.0,
            dirichlet_alpha=self.dirichlet_alpha,
            pb_c_init=self.c_init,
            pb_c_base=self.c_base,
            temperature=float(explore),
        )


def random_actions(keys: Key, obs: PyTree, number: int) -> Array:
    """Draw one of the ``number`` actions for each observation, [B], uniformly from those that its mask allows."""
    return sample_each(Categorical(masked(jnp.zeros((len(keys), number)), obs)), keys)


def package() -> Any:
    return import_package("mctx", "tree search", extra="search")


def search(
    method: Gumbel | PUCT, expand: Expand, node: Node, position: PyTree, obs: PyTree, key: Key, simulations: int, *, explore: bool
) -> Found:
    """Search from one position.

    Each search is a batch of one, so that the random numbers of an environment do not depend on the others; ``vmap`` makes them
    one program.

    Args:
      node: the network's outputs for the position.
      obs: its observation, whose ``action_mask`` holds at the root.
      explore: choose the action as in training.
    """
    mask = split_mask(obs)[1]
    alone = partial(jax.tree.map, lambda x: x[None])

    def recurrent(params: Any, key: Key, action: Array, embedding: PyTree) -> Any:
        position, reward, discount, after = expand(key, jax.tree.map(lambda x: x[0], embedding), action[0])
        reached = {"reward": reward, "discount": discount, "prior_logits": after.logits, "value": after.value}
        return package().RecurrentFnOutput(**alone(reached)), alone(position)

    root = package().RootFnOutput(prior_logits=node.logits[None], value=node.value[None], embedding=alone(position))
    invalid = None if mask is None else 1 - mask[None].astype(jnp.int32)
    found = method.search(root, recurrent, key, simulations, invalid, explore)
    action = found.action[0].astype(jnp.int32)
    return Found(action, found.action_weights[0], found.search_tree.summary().qvalues[0, action])
