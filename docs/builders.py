"""Extension of Griffe: builders and networks are shown with the keywords that a decorator gives them, as by ``help``."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

from griffe import Extension, Function, GriffeLoader, Parameter, ParameterKind, Parameters, safe_get_annotation

from jaxrl.builder.keywords import with_keywords_of
from jaxrl.models.configured import configured_by

HOMES = {decorator.__name__: decorator.__module__ for decorator in (with_keywords_of, configured_by)}
"""Decorator -> the module that defines the keywords."""


class Builders(Extension):
    def on_function(self, *, func: Function, loader: GriffeLoader, **_: Any) -> None:
        for decorator in func.decorators:
            home = HOMES.get(str(decorator.value).partition("(")[0])
            if home and func.docstring:
                function = getattr(importlib.import_module(func.module.path), func.name)
                func.docstring.value = function.__doc__
                parameters = inspect.signature(function).parameters.values()
                func.parameters = Parameters(*(converted(p, loader.modules_collection[home]) for p in parameters))


def converted(parameter: inspect.Parameter, home: Any) -> Parameter:
    annotation = safe_get_annotation(ast.parse(parameter.annotation, mode="eval").body, home)
    default = None if parameter.default is parameter.empty else repr(parameter.default)
    return Parameter(parameter.name, annotation=annotation, kind=ParameterKind(parameter.kind.description), default=default)
