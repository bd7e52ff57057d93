"""``configured_by``, which gives the keywords of a config to a network function, for type checkers, ``inspect.signature`` and
``help``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from gymnasium import spaces

from jaxrl.models.config import NetworkConfig
from jaxrl.settings.docstrings import entries, with_entries
from jaxrl.types import Model

C = TypeVar("C", bound=NetworkConfig)
P = ParamSpec("P")
Space = spaces.Space
OBSERVATION_SPACE = "Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them. Each entry is encoded by its kind."


def configured_by(
    config: Callable[P, C],
) -> Callable[[Callable[[Space, Space, C], Model]], Callable[Concatenate[Space, Space, P], Model]]:
    """Return a decorator of a function ``(observation_space, action_space, config)``: it takes the config's fields as keywords.

    The function's docstring documents the action space and what differs; each entry of its Args and Raises replaces the config's.
    """
    fields: Any = inspect.signature(config).parameters
    kinds = inspect.getmro(cast(type, config))[-2::-1]  # without object, NetworkConfig first

    def decorate(build: Callable[[Space, Space, C], Model]) -> Callable[Concatenate[Space, Space, P], Model]:
        @functools.wraps(build)
        def network(observation_space: Space, action_space: Space, **keywords: Any) -> Model:
            for name in keywords.keys() - fields:
                raise TypeError(f"{build.__name__}() got an unexpected keyword argument {name!r}")
            return build(observation_space, action_space, cast(Any, config)(**keywords))

        made, signature = cast(Any, network), inspect.signature(build)
        both_spaces = list(signature.parameters.values())[:2]
        made.config, made.__signature__ = config, signature.replace(parameters=[*both_spaces, *fields.values()])
        if build.__doc__:  # python -OO leaves none
            texts = {"observation_space": OBSERVATION_SPACE} | entries("Args", *kinds, build)
            args = {name: texts[name] for name in made.__signature__.parameters}
            made.__doc__ = with_entries(build, Args=args, Raises=entries("Raises", *kinds, build))
        return made

    return decorate
