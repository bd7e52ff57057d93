"""Wrappers: functions ``(env, ...) -> env`` over pure environments, in ids too: ``"CartPole-v1|frame_stack(4)|time_limit(200)"``.

Each gives an ``Env`` that keeps the contract of ``jaxrl.types``: it never resets itself, rewards stay raw, and what a wrapper
remembers is in its own state, around the state of what it wraps. ``render`` draws what is inside.
"""

from __future__ import annotations

from jaxrl.envs.wrappers.actions import StickyParams, action_repeat, clip_action, scale_action, sticky_actions, time_limit
from jaxrl.envs.wrappers.base import WRAPPERS, bind_call, usage, wrap
from jaxrl.envs.wrappers.observations import flatten_observation, frame_stack, select_observation, time_aware

__all__ = [
    "WRAPPERS",
    "StickyParams",
    "action_repeat",
    "bind_call",
    "clip_action",
    "flatten_observation",
    "frame_stack",
    "scale_action",
    "select_observation",
    "sticky_actions",
    "time_aware",
    "time_limit",
    "usage",
    "wrap",
]
