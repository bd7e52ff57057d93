"""Advice from Optuna's samplers, on a study in memory that is made anew from the trials each time.

A sampler's generator is state that no storage of Optuna's keeps. Here it is seeded with the number of the next trial, so that an
answer depends only on the trials. The generations of CMA-ES and NSGA-II are attributes of trials, which the log keeps with them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from jaxrl.envs.host import one_line
from jaxrl.runtime.logs.run_folder import first_difference
from jaxrl.runtime.search.space import Space, structure_of
from jaxrl.runtime.search.trials import Asked, Trial, Trials
from jaxrl.runtime.system.warn import warn
from jaxrl.settings.space import Dimension

TRIAL, ENTRIES = "trial", "search"
"""Attributes of a copied trial, its number, and of the study, the entries of the search file."""
LEAST_TRIALS = 8
"""Trials that trained to the end from which importances are estimated."""
GENERATION, OPTIMIZER = ":generation", ":optimizer:"
"""In the names of attributes in which samplers keep the number of a trial's generation, and pieces of a pickled optimizer."""
NEEDS = {"cmaes": "cmaes", "gp": "torch"}
"""Package that a method needs beside Optuna."""


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ImportError(
            'this method needs Optuna: pip install "jaxrl[search]". The methods random, sobol and grid need nothing further'
        ) from None
    return optuna


@contextmanager
def _quietly(optuna: Any) -> Iterator[None]:
    """Suppress its notes of each trial, and its warnings of what is experimental."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def importances(space: Space, trials: Trials) -> dict[str, float] | None:
    """Return the importance of each setting by PED-ANOVA; None without Optuna, or with too few trials that trained to the end."""
    if find_spec("optuna") is None or len(trials.complete) < LEAST_TRIALS:
        return None
    adviser = OptunaAdviser("random", space, 0)
    with _quietly(adviser._optuna):
        importance = adviser._optuna.importance
        evaluator = importance.PedAnovaImportanceEvaluator()
        return dict(importance.get_param_importances(adviser.study(trials), evaluator=evaluator))


class Mirror:
    """Copy of the trials that have ended in a storage of Optuna's, for its dashboard. The search reads nothing from it."""

    def __init__(self, storage: str, name: str, space: Space, entries: Mapping[str, Any]) -> None:
        """
        Args:
          storage: a file that ends in ``.log``, for Optuna's journal, or the address of a database.
          name: name of the study.
          entries: those of the search file, as JSON. A study holds the trials of one search.

        Raises:
          ImportError: Optuna is not installed.
          ValueError: the storage cannot be opened, or its study of this name is that of another search.
        """
        optuna, self._adviser = _optuna(), OptunaAdviser("random", space, 0)
        self._optuna = optuna
        with _quietly(optuna):
            try:
                place: Any = storage
                if storage.endswith(".log"):
                    journal = optuna.storages.journal
                    place = optuna.storages.JournalStorage(journal.JournalFileBackend(storage))
                self._study = optuna.create_study(storage=place, study_name=name, direction="maximize", load_if_exists=True)
                self._known = {trial.user_attrs.get(TRIAL) for trial in self._study.get_trials(deepcopy=False)}
                there = self._study.user_attrs.get(ENTRIES)
                if there is None:
                    self._study.set_user_attr(ENTRIES, dict(entries))
            except Exception as error:  # of any database's driver
                raise ValueError(f"storage={storage!r} cannot be opened: {one_line(error)}") from error
        if there is not None and (difference := first_difference(there, entries)):
            raise ValueError(
                f"the study {name!r} in storage={storage!r} is that of another search: {difference} here. Give another folder as "
                "out, whose name is that of the study, or another storage"
            )

    def update(self, trials: Trials) -> None:
        """Add the trials that have ended since. Errors are reported once, and end the copying."""
        new = [trial for trial in trials.all if trial.end is not None and trial.number not in self._known]
        if not new or self._study is None:
            return
        with _quietly(self._optuna):
            try:
                for trial in new:
                    self._study.add_trial(self._adviser.frozen(trials, trial, {TRIAL: trial.number, "end": trial.end}))
                    self._known.add(trial.number)
            except Exception as error:  # of any database's driver
                self._study = None
                warn(f"copying trials to Optuna's storage has ended: {one_line(error)}")


class OptunaAdviser:
    """An adviser whose answers are those of one of Optuna's samplers."""

    def __init__(self, method: str, space: Space, seed: int) -> None:
        """
        Raises:
          ImportError: Optuna, or what its sampler needs, is not installed.
        """
        self._optuna, self._method, self._space, self._seed = _optuna(), method, space, seed
        if (needs := NEEDS.get(method)) is not None:
            try:
                __import__(needs)
            except ImportError:
                raise ImportError(f'method = "{method}" needs the package {needs}: pip install {needs}') from None

    def ask(self, trials: Trials, count: int, structure: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """See ``Adviser``."""
        settings = list[dict[str, Any]]()
        with _quietly(self._optuna):
            study = self.study(trials)
            if self._method == "cmaes":
                self._tell_generations(study)
            for _ in range(count):
                settings.append(self._ask_one(study, structure))
                structure = structure_of(self._space, settings[-1])
        return settings

    def _tell_generations(self, study: Any) -> None:
        """Tell CMA-ES all generations that have ended, in order.

        It tells one when it is asked, and keeps its optimizer, pickled, with the new trial. The log has no pickles, as loading
        them runs code, so here further trials of the study in memory hold the optimizer.
        """
        while True:
            asked = self._frozen_ask(study, study.sampler)
            optimizer = {name: value for name, value in asked.system_attrs.items() if OPTIMIZER in name}
            if not optimizer:
                return
            holder = {"params": asked.params, "distributions": asked.distributions, "system_attrs": optimizer}
            study.add_trial(self._optuna.trial.create_trial(state=self._optuna.trial.TrialState.COMPLETE, value=0.0, **holder))

    def _frozen_ask(self, study: Any, sampler: Any) -> Any:
        """Ask for a trial, and return it with its attributes."""
        base, study.sampler = study.sampler, sampler
        number = study.ask({d.name: self._distribution(d) for d in self._space}).number
        study.sampler = base
        return study.get_trials(deepcopy=False)[number]

    def study(self, trials: Trials) -> Any:
        """Return the trials as a study of Optuna's, in memory."""
        optuna = self._optuna
        study = optuna.create_study(
            storage=optuna.storages.InMemoryStorage(),
            sampler=self._sampler(len(trials.all)),
            study_name="jaxrl",
            direction="maximize",
        )
        study.add_trials([self.frozen(trials, trial) for trial in trials.all])
        return study

    def _sampler(self, number: int) -> Any:
        samplers, seed = self._optuna.samplers, int(np.random.default_rng([self._seed, number]).integers(2**31))
        makers: dict[str, Callable[[], Any]] = {
            "random": lambda: samplers.RandomSampler(seed=seed),
            "tpe": lambda: samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, group=False),
            "cmaes": lambda: samplers.CmaEsSampler(seed=seed),
            "gp": lambda: samplers.GPSampler(seed=seed),
            "nsga2": lambda: samplers.NSGAIISampler(seed=seed),
        }
        return makers[self._method]()

    def _ask_one(self, study: Any, structure: Mapping[str, Any] | None) -> dict[str, Any]:
        sampler = study.sampler
        if structure:
            fixed = {d.name: d.choices.index(structure[d.name]) for d in self._space if d.is_structure}
            sampler = self._optuna.samplers.PartialFixedSampler(fixed, sampler)
        asked = self._frozen_ask(study, sampler)
        notes = {name: value for name, value in asked.system_attrs.items() if name.endswith(GENERATION)}
        return Asked({d.name: self._setting(d, asked.params[d.name]) for d in self._space}, notes)

    def _distribution(self, d: Dimension) -> Any:
        distributions = self._optuna.distributions
        if d.choices:  # by index: values may be lists or tables
            return distributions.CategoricalDistribution([*range(len(d.choices))])
        return distributions.FloatDistribution(*d.line)

    @staticmethod
    def _setting(d: Dimension, param: Any) -> Any:
        return d.choices[param] if d.choices else float(d.from_line(param))

    @staticmethod
    def _param(d: Dimension, setting: Any) -> Any:
        return d.choices.index(setting) if d.choices else min(max(d.to_line(setting), d.line[0]), d.line[1])

    def frozen(self, trials: Trials, trial: Trial, attributes: Mapping[str, Any] | None = None) -> Any:
        """Return a trial as Optuna knows it. One that diverged has no value, and counts as worse than all others."""
        optuna, score = self._optuna, trials.score(trial)
        states = optuna.trial.TrialState
        scores = {age: trials.score(trial, age) for age in trial.tests}
        value: float | None = None
        if trial.end == "complete" and not math.isnan(score):
            state, value = states.COMPLETE, score
        else:
            state = states.RUNNING if trial.end is None else states.PRUNED
        return optuna.trial.create_trial(
            state=state,
            value=value,
            params={d.name: self._param(d, trial.settings[d.name]) for d in self._space},
            distributions={d.name: self._distribution(d) for d in self._space},
            user_attrs=dict(attributes or {}),
            system_attrs=dict(trial.notes),
            intermediate_values={age: each for age, each in scores.items() if not math.isnan(each)},
        )
