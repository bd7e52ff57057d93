"""Settings of evolution outside of agents: of functions, and of products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import jax
import optax

from jaxrl.evolution.noise import NormalNoise, SignNoise
from jaxrl.evolution.strategies import ARS, OpenAI
from jaxrl.optimize import adam, sgd
from jaxrl.settings.aliases import hint_or, nearest
from jaxrl.settings.options import option_fields, resolve_option
from jaxrl.settings.validation import Count, CountOrZero, NonNegative, Positive, PositiveUnit, checked, setting_types
from jaxrl.types import Array, Key


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search by evolution strategies."""

    sigma: Positive = 0.05
    """Standard deviation of the members' parameters."""
    sigma_decay: PositiveUnit = 1.0
    """Factor on ``sigma`` after each version."""
    learning_rate: NonNegative = 0.03
    """Step size of Adam, or of gradient ascent with ``ARS``."""
    weight_decay: NonNegative = 0.0
    """Weight of ½‖θ‖² in the loss."""
    noise: NormalNoise | SignNoise = NormalNoise()
    """Distribution of the members."""
    strategy: OpenAI | ARS = OpenAI()
    """How fitness becomes a step."""
    seed: CountOrZero = 0
    """Seed of all noise."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Return settings from plain data. Raise TypeError or ValueError, naming the setting, for a wrong one."""
        kind: Any = cls
        types, options = setting_types(kind), option_fields(kind)
        for name in given:
            if name not in types:
                raise TypeError(f"{name!r} is not a setting.{hint_or(nearest(name, types), f'Settings: {sorted(types)}.')}")

        def value(name: str, x: Any) -> Any:
            if name in options:
                return resolve_option(name, x, options[name], getattr(cls(), name))
            return checked(name, x, types[name])

        return cls(**{name: value(name, x) for name, x in given.items()})

    def as_plain(self) -> dict[str, Any]:
        """Return plain data for ``read``."""
        kind: Any = type(self)
        options = option_fields(kind)
        return {
            name: {"name": x.name, **asdict(x)} if name in options else x
            for name, x in ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        }

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return (sgd if isinstance(self.strategy, ARS) else adam)(self)

    def sigma_of(self, version: Array | int) -> Any:
        return self.sigma * self.sigma_decay**version

    def key_of(self, version: Array | int) -> Key:
        return jax.random.fold_in(jax.random.key(self.seed), version)


@dataclass(frozen=True)
class EvolutionSettings(SearchSettings):
    """Settings of a product's evolution, as its file or keywords of ``init`` give them."""

    noise: NormalNoise | SignNoise = SignNoise()
    """Distribution of the members. Other languages reproduce ``SignNoise`` to the bit."""
    strategy: OpenAI = OpenAI()
    """How fitness becomes a step. ``ARS`` needs both members of each pair, and a product logs those that were used."""
    staleness: Literal["within", "shift", "importance", "drop"] = "within"
    """How members of older versions count; see ``jaxrl.evolution.gradient.stale_gradient``."""
    age_discount: PositiveUnit = 1.0
    """With "within": weight of a version's members per version of age."""
    max_to_keep: Count = 5
    """Versions that are kept, and whose rewards are accepted."""
