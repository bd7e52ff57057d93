"""Settings of algorithms that learn from sequences of replay if their networks have memory."""

from __future__ import annotations

import dataclasses
from typing import Self

from jaxrl.builder.config import BufferConfig, HindsightConfig, ReplayConfig
from jaxrl.settings.validation import CountOrZero, added

SEQUENCE_LENGTH = 32
"""Default of ``sequence_length`` with memory."""


@dataclasses.dataclass(frozen=True)
class SequenceLength(BufferConfig):
    """Length of sequences, for algorithms that learn from single rows without memory."""

    sequence_length: CountOrZero = added(0)
    """With memory: rows of a sequence from which the networks learn; 0 is 32. A sequence begins with each rollout.
    ``batch_size`` then counts sequences, and ``replay_ratio`` their rows."""

    @property
    def has_memory(self) -> bool:
        return self.sequence_length > 0

    @property
    def rows_per_update(self) -> tuple[int, str]:
        if not self.has_memory:
            return super().rows_per_update
        return self.batch_size * self.sequence_length, "(batch_size * sequence_length)"

    def with_memory(self, recurrent: bool) -> Self:
        """Return the settings with the default length for a model with a carry.

        Raises:
          ValueError: settings of sequences without a carry.
        """
        if recurrent:
            return dataclasses.replace(self, sequence_length=self.sequence_length or SEQUENCE_LENGTH)
        for name in ("burn_in", "sequence_length"):
            if value := getattr(self, name, 0):
                raise ValueError(
                    f"{name}={value} has no effect on a model without memory: leave it out, or give the model a core, as with "
                    'model={"core": "gru"}'
                )
        return self


@dataclasses.dataclass(frozen=True)
class SequenceConfig(SequenceLength, ReplayConfig):
    """Structural settings of sequences with returns."""

    burn_in: CountOrZero = added(0)
    """With memory: rows before those of ``sequence_length`` that only bring the carries up to date with the parameters, and enter
    no loss."""

    @property
    def rows_behind(self) -> int:
        # The burn-in, the other training rows, and those of the last return.
        return self.burn_in + max(0, self.sequence_length - 1) + self.n_step

    def check_buffer(self) -> None:
        if not self.has_memory:
            super().check_buffer()
            return
        rows = self.rollout_length * (2 + self.rows_behind // self.rollout_length)
        if self.buffer_size // (self.num_envs * self.rollout_length) * self.rollout_length < rows:
            raise ValueError(
                f"buffer_size={self.buffer_size} is too small: a sequence of burn_in + sequence_length + n_step = "
                f"{self.rows_behind + 1} rows and the row before it take {rows} rows of each environment in rollouts of "
                f"{self.rollout_length}; use at least {rows * self.num_envs}"
            )


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(HindsightConfig, SequenceConfig):
    """Structural settings of algorithms that learn from transitions, and from sequences if their networks have memory."""

    def for_model(self, recurrent: bool) -> Self:
        """Return the settings for a model with or without a carry.

        Raises:
          ValueError: settings of sequences without memory, or settings of single rows with it.
        """
        if recurrent and self.hindsight is not None:
            raise ValueError(
                f"hindsight={self.hindsight.name!r} relabels single rows, and a model with memory learns from sequences: "
                "leave one out"
            )
        return self.with_memory(recurrent)
