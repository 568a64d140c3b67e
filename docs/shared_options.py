"""Gives the API page the docstring and the signature of each command that `help(probing.fit)` shows.

The page is made from the source, in which the options of a command are the fields of a class.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from griffe import Extension, Function, Parameter, ParameterKind, Parameters


class SharedOptions(Extension):
    """Does for the source of a command what its decorator does when it is imported."""

    def on_function_instance(self, *, func: Function, **others: Any) -> None:
        """Set the docstring and the parameters of a command to those that its callers see."""
        if not any(str(decorator.value).startswith("command(") for decorator in func.decorators) or not func.docstring:
            return
        called = getattr(import_module(func.module.path), func.name)
        func.docstring.value = inspect.getdoc(called) or ""
        kinds = {
            inspect.Parameter.POSITIONAL_OR_KEYWORD: ParameterKind.positional_or_keyword,
            inspect.Parameter.KEYWORD_ONLY: ParameterKind.keyword_only,
        }
        func.parameters = Parameters(*(
            Parameter(given.name, annotation=given.annotation, kind=kinds[given.kind], default=repr(given.default))
            for given in inspect.signature(called).parameters.values()
        ))  # fmt: skip
