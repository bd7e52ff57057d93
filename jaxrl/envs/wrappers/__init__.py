"""Wrappers: functions ``(env, ...) -> env`` over pure environments, in ids too: ``"CartPole-v1|frame_stack(4)|time_limit(200)"``.

Each returns an ``Env`` that keeps the contract of ``jaxrl.types``: it never resets itself, and rewards stay raw. A wrapper keeps
its memory in its own state, which contains the state of the wrapped environment. ``render`` draws the wrapped environment.
"""

from __future__ import annotations

from jaxrl.envs.wrappers.actions import StickyParams, action_repeat, clip_action, scale_action, sticky_actions, time_limit
from jaxrl.envs.wrappers.agents import agent_id, central_state
from jaxrl.envs.wrappers.base import WRAPPERS, bind_call, usage, wrap
from jaxrl.envs.wrappers.observations import flatten_observation, frame_stack, privileged_state, select_observation, time_aware

__all__ = [
    "WRAPPERS",
    "StickyParams",
    "action_repeat",
    "agent_id",
    "bind_call",
    "central_state",
    "clip_action",
    "flatten_observation",
    "frame_stack",
    "privileged_state",
    "scale_action",
    "select_observation",
    "sticky_actions",
    "time_aware",
    "time_limit",
    "usage",
    "wrap",
]
