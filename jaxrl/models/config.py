"""Keywords of the built-in networks: types, defaults, texts and checks, in one place."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np

from jaxrl.models.convolution import CONVOLUTIONS
from jaxrl.models.cores import CORES
from jaxrl.models.images import IMAGE_NETWORKS, LAYOUTS
from jaxrl.models.initialisers import ACTIVATIONS, DTYPES
from jaxrl.settings.validation import Count, NonNegative, Positive, Range, checked

CHOICES: dict[str, Collection[Any]] = {
    "encoder": ("auto", *IMAGE_NETWORKS, "flat"),
    "activation": sorted(ACTIVATIONS),
    "image_layout": LAYOUTS,
    "convolution": CONVOLUTIONS,
    "dtype": DTYPES,
    "core": (None, *CORES),
    "critic": ("plain", "privileged"),
}
"""Keyword -> its allowed values."""

OF_ONE_CORE = (
    ("attention", "context", 20),
    ("attention", "attention_layers", 2),
    ("attention", "attention_heads", 2),
    ("attention", "gated", False),
    ("s5", "s5_layers", 2),
    ("s5", "state_size", 64),
)
"""Core, a keyword that only this core has, and its default."""


def keywords_of_other_cores(core: str | None) -> set[str]:
    """Return the keywords that only other cores have."""
    return {name for other, name, _ in OF_ONE_CORE if other != core}


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Keywords of all built-in networks. Values are checked, and converted to plain numbers and tuples.

    Args:
      encoder: the network for images (Boxes with three axes, or greyscale ones with two): "nature" (Mnih et al. 2015), "mnih2013"
        (Mnih et al. 2013), "impala" (Espeholt et al. 2018), "minatar" (Young & Tian 2019), or "flat" to flatten images. "auto":
        "nature" from 36×36 pixels, "minatar" below.
      hidden_sizes: units of each hidden layer, after the encoders and before the core. Default: (64, 64), or the layers of the
        encoder's paper: (512,) for "nature", (256,) for "mnih2013" and "impala", (128,) for "minatar".
      activation: "tanh", "relu", "elu" or "silu", also in convolutions. Default: "relu".
      layer_norm: normalise hidden layers before the activation (Ba et al. 2016).
      residual: make each hidden layer a residual block of its number of units, as in SimBa (Lee et al. 2025), after a linear
        layer. All must have the same number. Excludes ``layer_norm``, which blocks have.
      use_previous: also feed the previous action and reward to the network. Default: True with a core.
      image_layout: "HWC", "CHW", or "auto": channels first if the first axis is shorter than the last, as in envpool's Atari.
      channel_multiplier: factor on the number of channels in the paper.
      convolution: for "minatar", "slices", "convolution" or "auto" (by platform); see ``board_convolution``.
      embedding_size: embed Discrete and MultiDiscrete observations as learnt vectors of this size. Default: one-hot, or vectors
        of 64 for choices among more than 1,024.
      dtype: "float32" or "bfloat16", the type that layers compute in. Parameters, the core's carry and outputs are always f32.

    Raises:
      ValueError: a setting is unknown, or has no effect on these observations, or an image is too small for its encoder.
      TypeError: a setting has the wrong type, or a space is not supported.
    """

    encoder: str = "auto"
    hidden_sizes: Sequence[int] | None = None
    activation: str | None = None
    layer_norm: bool = False
    residual: bool = False
    use_previous: bool | None = None
    image_layout: str = "auto"
    channel_multiplier: Count = 1
    convolution: str = "auto"
    embedding_size: Count | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, type_ in get_type_hints(type(self), include_extras=True).items():
            object.__setattr__(self, name, _checked(name, getattr(self, name), type_))
        for name in ("layer_norm", "batch_renorm", "dropout") if self.residual else ():
            if value := getattr(self, name, None):
                raise ValueError(f"residual=True and {name}={value} are mutually exclusive: leave one out")
        if self.residual and self.hidden_sizes == ():
            raise ValueError("residual=True has no effect with hidden_sizes=(): name a size for each block")
        if self.residual and len(set(self.hidden_sizes or ())) > 1:
            raise ValueError(
                f"hidden_sizes={self.hidden_sizes} must all be equal with residual=True, because blocks add to their input: "
                "use (128, 128) for two blocks"
            )


@dataclass(frozen=True, kw_only=True)
class CoreConfig(NetworkConfig):
    """Keywords of networks that may have memory.

    Args:
      core: None, "gru" (Cho et al. 2014), "lstm" (Gers et al. 2000), "attention", a causal transformer over the last rows of
        an episode (Parisotto et al. 2020), or "s5", linear recurrences over all of its rows (Smith et al. 2023; Lu et al. 2023).
        The carry is reset where ``is_first`` is true.
      core_size: units of the core.
      context: for "attention", number of rows to which each layer attends, including the current one. Default: 20.
      attention_layers: for "attention", number of layers. Default: 2.
      attention_heads: for "attention", number of heads of each layer, which must divide ``core_size``. Default: 2.
      gated: for "attention", replace each layer's sums by gates of GRU type, as GTrXL (Parisotto et al. 2020).
      s5_layers: for "s5", number of layers. Default: 2.
      state_size: for "s5", complex numbers in the state of each layer. Default: 64.
    """

    core: str | None = None
    core_size: Count = 64
    context: Count | None = None
    attention_layers: Count | None = None
    attention_heads: Count | None = None
    gated: bool = False
    s5_layers: Count | None = None
    state_size: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for core, name, default in OF_ONE_CORE:
            if self.core == core:
                object.__setattr__(self, name, getattr(self, name) or default)
            elif value := getattr(self, name):
                raise ValueError(f"{name}={value} has no effect with core={self.core!r}: it is for core={core!r}")
        if self.attention_heads and self.core_size % self.attention_heads:
            raise ValueError(
                f"attention_heads={self.attention_heads} does not divide core_size={self.core_size}, into equal parts for each "
                f"head: use a core_size that is a multiple of {self.attention_heads}, or attention_heads=1"
            )


@dataclass(frozen=True, kw_only=True)
class GaussianConfig(CoreConfig):
    """Keywords of networks whose policy is a Gaussian for a Box.

    Args:
      initial_std: standard deviation of a Box's actions before training, in model units: a bounded Box is [−1, 1]. It is that
        before the squashing of a ``TanhNormal``.

    Raises:
      ValueError: ``initial_std`` is given for discrete actions.
    """

    initial_std: Positive = 1.0


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(GaussianConfig):
    """Keywords of ``actor_critic``.

    Args:
      activation: "tanh", "relu", "elu" or "silu", also in convolutions. Default: "relu" with an image, else "tanh".
      shared: policy and value share one torso and core. Default: True with an image or a core.
      critic: "plain", or "privileged": the value has a torso, and with a core a core, for itself, which also sees the
        ``privileged_state`` of a Dict observation. Excludes ``shared``.
      num_values: number of values, f32[..., num_values], in place of one, such as those of each action.
      squash: for a bounded Box, squash the Gaussian into the bounds (``TanhNormal``) instead of clipping its samples.
    """

    shared: bool | None = None
    critic: str = "plain"
    num_values: Count | None = None
    squash: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic == "privileged" and self.shared:
            raise ValueError("critic='privileged' and shared=True are mutually exclusive: the policy must not see the state")


@dataclass(frozen=True, kw_only=True)
class GreedyPolicyConfig(CoreConfig):
    """Keywords of ``greedy_policy``.

    Args:
      activation: "tanh", "relu", "elu" or "silu", also in convolutions. Default: "relu" with an image, else "tanh".
      squash: for a bounded Box, squash actions into the bounds by tanh instead of clipping them.
    """

    squash: bool = False


@dataclass(frozen=True, kw_only=True)
class QNetworkConfig(CoreConfig):
    """Keywords of ``q_network``.

    Args:
      dueling: use a stream for the state's value and one for advantages, each with its last hidden layer. An action's value is
        value + advantage − mean advantage (Wang et al. 2016, eq. 9). Excludes a core.
    """

    dueling: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dueling and self.core is not None:
            raise ValueError(f"core={self.core!r} and dueling=True are mutually exclusive: leave one out")


@dataclass(frozen=True, kw_only=True)
class ValueNetworkConfig(QNetworkConfig):
    """Keywords of ``value_network``.

    Args:
      core: None. ``q_network`` has cores.
      noise: σ₀ of noisy layers in the head (Fortunato et al. 2018); 0 for plain layers. Noise is drawn only when a key is given.
      num_outputs: number of outputs per action, f32[..., n, num_outputs]. No mask is applied to them.
      num_fractions: number of fractions of a ``QuantileOutput``, drawn with a key and evenly spaced without one (Dabney et al.
        2018b). Excludes ``num_outputs``.
    """

    noise: NonNegative = 0.0
    num_outputs: Count | None = None
    num_fractions: Count | None = None

    def __post_init__(self) -> None:
        if self.core is not None:
            raise ValueError(f"core={self.core!r}: value_network has no core; use q_network for plain Q-values with a core")
        super().__post_init__()
        if self.num_outputs and self.num_fractions:
            counts = f"num_outputs={self.num_outputs} and num_fractions={self.num_fractions}"
            raise ValueError(f"{counts} are mutually exclusive: leave one out")


@dataclass(frozen=True, kw_only=True)
class RenormConfig(CoreConfig):
    """Keywords of networks that may have batch renormalisation.

    Args:
      batch_renorm: normalise the input of each dense layer by ``BatchRenorm`` (Ioffe 2017; Bhatt et al. 2024), for algorithms
        that learn statistics. Excludes a core.
    """

    batch_renorm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_renorm and self.core is not None:
            raise ValueError(f"core={self.core!r} and batch_renorm=True are mutually exclusive: leave one out")


@dataclass(frozen=True, kw_only=True)
class PolicyNetworkConfig(RenormConfig, GaussianConfig):
    """Keywords of ``policy_network``."""


@dataclass(frozen=True, kw_only=True)
class ActionValueConfig(RenormConfig):
    """Keywords of ``action_value``.

    Args:
      dropout: fraction of units to drop in each hidden layer when a key is given (Hiraoka et al. 2022, with ``layer_norm``).
        Excludes a core.
      num_outputs: number of outputs in place of one value, such as quantiles; for a Box only.
      privileged: also see the ``privileged_state`` of a Dict observation.
    """

    dropout: Annotated[float, Range(0, 0.99)] = 0.0
    num_outputs: Count | None = None
    privileged: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dropout and self.core is not None:
            raise ValueError(f"core={self.core!r} and dropout={self.dropout:g} are mutually exclusive: leave one out")


def _checked(name: str, value: Any, type_: Any) -> Any:
    """Return a keyword's value as a plain one.

    Raises:
      ValueError, TypeError: the value is not allowed for any observations.
    """
    optional = type(None) in get_args(type_)
    if value is None and optional:
        return None
    if name == "hidden_sizes":
        return _sizes(value)
    if name not in CHOICES:
        return checked(name, value, get_args(type_)[0] if optional else type_)
    if value not in CHOICES[name]:
        raise ValueError(f"{name}={value!r} is unknown: choose one of {CHOICES[name]}{_similar(value, CHOICES[name])}")
    return value


def _sizes(hidden_sizes: Any) -> tuple[int, ...]:
    sizes = tuple(hidden_sizes) if isinstance(hidden_sizes, Sequence) else (None,)
    if not all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise ValueError(f"hidden_sizes={hidden_sizes!r} must be positive integers, as in (64, 64), or (64,) for one layer")
    return tuple(int(size) for size in sizes)


def _similar(value: Any, allowed: Collection[Any]) -> str:
    written = {name.lower(): name for name in allowed if name}
    close = difflib.get_close_matches(str(value).lower(), written, n=1, cutoff=0.5)
    return f". Did you mean {written[close[0]]!r}?" if close else ""
