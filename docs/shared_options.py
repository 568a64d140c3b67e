"""Gives the API page the docstring and the signature of each command that `help(probing.fit)` shows.

The page is made from the source, in which options that several commands share are not described at each command.
"""

from __future__ import annotations

from typing import Any

from griffe import Extension, Function, Parameters

from probing.cli.options import complete


class SharedOptions(Extension):
    """Does for the source of a command what its decorators do when it is imported."""

    def on_function_instance(self, *, func: Function, **others: Any) -> None:
        """Complete the docstring of a command, and leave out the parameter that its callers do not see."""
        decorators = {str(decorator.value) for decorator in func.decorators}
        if "configured" in decorators:  # it does what these two do
            decorators |= {"resolved", "with_shared_help"}
        if "resolved" in decorators:
            func.parameters = Parameters(*list(func.parameters)[1:])
        if "with_shared_help" in decorators and func.docstring:
            options = [parameter.name for parameter in func.parameters]
            func.docstring.value = complete(func.docstring.value, options)
