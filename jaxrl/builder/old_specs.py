"""Specs of jaxrl 0.2, which had flat settings in place of options, converted to those of today."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.registry import ALGORITHMS
from jaxrl.settings.options import described_option, option_fields, resolve_option

Settings = dict[str, Any]


def converted(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec with options in place of the flat settings of jaxrl 0.2. Other specs are returned as they are."""
    builder, settings = spec.get("builder"), spec.get("settings")
    path = builder.get("import") if isinstance(builder, Mapping) else None
    algorithm = str(path).rpartition(":make_")[2]
    if not str(path).startswith("jaxrl.algorithms.") or not isinstance(settings, Mapping) or algorithm not in OLD:
        return dict(spec)
    settings, parts = dict(settings), dict(spec.get("parts") or {})
    config = ALGORITHMS[algorithm].load().config
    for name, convert in OLD[algorithm].items():
        if (value := convert(settings)) is not None:
            option = resolve_option(name, value, option_fields(config)[name], getattr(config(), name))
            settings |= described_option(config, name, option)
    for old, (part, argument) in NETWORK_ARGUMENTS.items():
        value = settings.pop(old, None)
        if value is not None and value != (old == "normalize_layers"):
            parts[part] = with_argument(parts.get(part), part, argument, value)
    return {**spec, "settings": settings, "parts": parts}


def renamed(settings: Settings, name: str, fields: Mapping[str, str]) -> Settings:
    """Return an option with these fields, field -> old name, as far as ``settings`` has them."""
    return {"name": name, **{field: settings.pop(old) for field, old in fields.items() if old in settings}}


def without(settings: Settings, *names: str) -> None:
    for name in names:
        settings.pop(name, None)


def head(settings: Settings) -> Any:
    kind = settings.get("head")
    atoms, quantiles = ("num_atoms", "v_min", "v_max"), ("num_quantiles", "huber_threshold")
    found = None
    if isinstance(kind, str):
        del settings["head"]
        found = renamed(settings, kind, {name: name for name in (atoms if kind == "c51" else quantiles)})
    without(settings, *atoms, *quantiles)
    return found


def bootstrap(settings: Settings) -> Any:
    fields = {"weight": "munchausen", "temperature": "munchausen_temperature", "clip": "munchausen_clip"}
    double, found = settings.pop("double", True), None
    if settings.get("munchausen"):
        found = renamed(settings, "munchausen", fields)
    elif not double:
        found = {"name": "greedy"}
    without(settings, *fields.values())
    return found


EXPONENTS = {"exponent": "priority_exponent", "importance_exponent": "importance_exponent"}


def prioritized(settings: Settings) -> Any:
    found = renamed(settings, "prioritized", EXPONENTS) if settings.pop("prioritized", False) else None
    without(settings, *EXPONENTS.values())
    return found


def sequences(settings: Settings) -> Any:
    return renamed(settings, "sequence", EXPONENTS) if "priority_exponent" in settings else None


def hindsight(settings: Settings) -> Any:
    kind, share = settings.get("hindsight"), settings.pop("hindsight_share", 0.8)
    if not isinstance(kind, str):
        return None
    del settings["hindsight"]
    return None if kind == "none" else {"name": kind, "share": share}


def rescale(settings: Settings) -> Any:
    eps, switch = settings.pop("rescale_eps", 1e-3), settings.get("rescale")
    if not isinstance(switch, bool):
        return None
    del settings["rescale"]
    return {"name": "sqrt", "eps": eps} if switch else "none"


def switched(switch: str, name: str, fields: Mapping[str, str]) -> Callable[[Settings], Any]:
    """Return the conversion of an option that a switch, or a number above 0, turned on."""

    def convert(settings: Settings) -> Any:
        found = renamed(settings, name, fields) if settings.get(switch) else None
        without(settings, switch, *fields.values())
        return found

    return convert


def action_noise(settings: Settings) -> Any:
    kind = settings.get("noise")
    if not isinstance(kind, str):
        return None
    found = renamed(settings, kind, {"theta": "ou_theta"} if kind == "ou" else {"hold": "hold_noise"})
    without(settings, "ou_theta", "hold_noise")
    return found


def critics(settings: Settings) -> Any:
    if "num_critics" not in settings:
        return None
    quantiles = {"size": "num_critics", "num_quantiles": "num_quantiles", "dropped": "dropped_quantiles"}
    if settings.get("num_quantiles"):
        found = renamed(settings, "quantiles", quantiles)
    else:
        found = renamed(settings, "ensemble", {"size": "num_critics", "subset": "num_target_critics"})
    without(settings, *quantiles.values(), "num_target_critics")
    return found


def temperature(settings: Settings) -> Any:
    fields = {"learning_rate": "temperature_learning_rate", "box_entropy": "box_entropy", "discrete_entropy": "discrete_entropy"}
    if "learn_temperature" not in settings:
        return None
    if settings.pop("learn_temperature"):
        return renamed(settings, "learned", {"initial": "temperature", **fields})
    without(settings, *fields.values())
    return renamed(settings, "fixed", {"value": "temperature"})


def surrogate(settings: Settings) -> Any:
    kind = settings.get("surrogate", "clip" if "clip_eps" in settings else None)
    if kind not in ("clip", "kl"):
        return None
    if kind == "kl":
        found = renamed(settings, "kl", {"coef": "kl_coef", "target": "kl_target"})
    else:
        found = renamed(settings, "clip", {"eps": "clip_eps", "value_loss": "clip_value_loss"})
    without(settings, "kl_coef", "kl_target", "clip_eps", "clip_value_loss")
    return found


spread = switched("epsilon_exponent", "spread", {"exponent": "epsilon_exponent"})
noisy = switched("noisy", "noisy", {"sigma": "noisy_sigma"})
optimistic = switched("optimistic", "optimistic", {"beta": "optimism_beta", "kl": "optimism_kl"})
DETERMINISTIC: dict[str, Callable[[Settings], Any]] = {"critics": critics, "noise": action_noise, "hindsight": hindsight}

OLD: dict[str, dict[str, Callable[[Settings], Any]]] = {
    "ppo": {"surrogate": surrogate},
    "pqn": {"exploration": spread},
    "r2d2": {"replay": sequences, "rescale": rescale, "exploration": spread},
    "dqn": {
        "head": head,
        "bootstrap": bootstrap,
        "replay": prioritized,
        "hindsight": hindsight,
        "noise": noisy,
        "exploration": spread,
    },
    "sac": {"critics": critics, "temperature": temperature, "exploration": optimistic, "hindsight": hindsight},
    "td3": DETERMINISTIC,
    "ddpg": DETERMINISTIC,
}
"""Algorithm -> option -> function that takes its settings out of flat ones and returns the option; None leaves its default."""

NETWORK_ARGUMENTS = {
    "dueling": ("model", "dueling"),
    "normalize_layers": ("model", "layer_norm"),
    "critic_layer_norm": ("critic", "layer_norm"),
    "critic_dropout": ("critic", "dropout"),
}
"""Settings that are arguments of networks now: old name -> (part, argument)."""


def with_argument(part: Any, name: str, argument: str, value: Any) -> Any:
    """Return a network in a spec with one more argument."""
    if name == "critic":
        return {**(part or {}), argument: value}
    part = part or {"partial": {"import": "jaxrl.models:q_network"}, "args": [], "kwargs": {}}
    return {**part, "kwargs": {**part.get("kwargs", {}), argument: value}}
