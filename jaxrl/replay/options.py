"""Options of replay: how rows are drawn, and how goals are relabelled."""

from __future__ import annotations

from typing import Literal

from jaxrl.replay import ReplayFn
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.recent import recent_replay
from jaxrl.replay.sequence import sequence_replay
from jaxrl.replay.uniform import uniform_replay
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Count, PositiveUnit, Unit


@option("uniform")
class Uniform(Option):
    """Draw all rows with equal probability (``jaxrl.replay.uniform``)."""

    @property
    def function(self) -> ReplayFn:
        return uniform_replay


@option("prioritized")
class Prioritized(Option):
    """Draw rows in proportion to their last |TD error| (Schaul et al. 2016; ``jaxrl.replay.prioritised``)."""

    exponent: Unit = 0.6
    """α: a row's probability is proportional to its priority to this power; 0 draws all rows with equal probability."""
    importance_exponent: Unit = 0.4
    """β: the loss of a row is weighted by its probability to the power of −β. With ``anneal``, β rises linearly to 1 at
    ``total_steps``."""

    @property
    def function(self) -> ReplayFn:
        return prioritised_replay(priority_exponent=self.exponent)


@option("recent")
class Recent(Option):
    """Draw the rows of an iteration's later updates from newer rows (ERE, Wang & Ross 2019; ``jaxrl.replay.recent``)."""

    eta: PositiveUnit = 0.996
    """η: at the last update a row is one of the newest η¹⁰⁰⁰ of all; 1 draws all rows with equal probability."""
    least: Count = 2_500
    """Number of newest rows from which the rows of an update are drawn at least."""

    @property
    def function(self) -> ReplayFn:
        return recent_replay(self.eta, self.least)


@option("sequence")
class Sequence(Option):
    """Draw whole sequences, with the carry before the first row, in proportion to their priorities (Kapturowski et al. 2019;
    ``jaxrl.replay.sequence``)."""

    exponent: Unit = 0.9
    """Exponent of the priorities; 0 draws all sequences with equal probability."""
    importance_exponent: Unit = 0.6
    """Exponent of the importance weights of losses. With ``anneal`` it rises linearly to 1 at ``total_steps``."""

    @property
    def function(self) -> ReplayFn:
        return self.of_agents(0)

    def of_agents(self, num_agents: int) -> ReplayFn:
        """Return a replay that draws the sequences of this number of agents together; 0: each alone."""
        return sequence_replay(prioritised_replay(priority_exponent=self.exponent), num_agents=num_agents)


@option("shift")
class Shift(Option):
    """Shift the images of drawn rows at random (DrQ, Yarats et al. 2021; ``jaxrl.replay.augmentation``)."""

    pixels: Count = 4
    """The largest shift in each direction; edges are repeated."""
    layout: Literal["auto", "HWC", "CHW"] = "auto"
    """Layout of the images. "auto": that of ``image_layout`` among the arguments of ``model``; without it, channels first if the
    first axis is shorter than the last."""


@option("future")
class Future(Option):
    """Relabel rows with a later state of their episode as the goal (Andrychowicz et al. 2017; ``jaxrl.replay.hindsight``)."""

    share: Unit = 0.8
    """Share of the drawn rows that are relabelled; 0.8 is four new goals per desired goal."""


@option("final")
class Final(Future):
    """Relabel rows with the last state of their episode as the goal."""


@option("episode")
class Episode(Future):
    """Relabel rows with any state of their episode as the goal."""
