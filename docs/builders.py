"""Extension of Griffe: builders are shown with the keywords of their family (``jaxrl.builder.keywords``), as by ``help``."""

from __future__ import annotations

import importlib
from typing import Any

from griffe import Extension, Function, GriffeLoader

from jaxrl.builder import keywords


class Builders(Extension):
    def on_function(self, *, func: Function, loader: GriffeLoader, **_: Any) -> None:
        for decorator in func.decorators:
            name, _, family = str(decorator.value).rstrip(")").partition("(")
            if name == keywords.with_keywords_of.__name__ and func.docstring:
                func.parameters = loader.modules_collection[f"{keywords.__name__}.{family}"].parameters
                func.docstring.value = getattr(importlib.import_module(func.module.path), func.name).__doc__
