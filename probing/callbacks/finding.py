"""Finds the model of transformers inside a module that is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from torch import nn

from probing.errors import UserError

# What says which model of a module is probed: the name of an attribute, or a function that returns it.
Which = str | Callable[[Any], Any] | None


def find_in(module: nn.Module, which: Which = None) -> Any:
    """Return the `PreTrainedModel` that a module is, or has in it; one inside another one does not count.

    Args:
        module: The module that is trained.
        which: Name of the attribute that is, or holds, the model, such as `student` or `student.encoder`, or a function
            that returns it from the module; None if the module has one model only.

    Raises:
        UserError: If there is no such model, or if there are several.
    """
    holder, where = module, type(module).__name__
    if isinstance(which, str):
        try:
            holder = attrgetter(which)(module)
        except AttributeError:
            raise UserError(
                f"`model={which!r}`: the {where} has no such attribute; {_there(_models_in(module))}."
            ) from None
        where = f"attribute {which} of the {where}"
    elif which is not None:
        holder, where = which(module), f"result of `model` for the {where}"
    found = _models_in(holder) if isinstance(holder, nn.Module) else {}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        first = next(iter(found))
        raise UserError(f"`model`: {_there(found)} in the {where}; say which one is probed, as in model={first!r}.")
    if which is None:
        raise UserError(f"`model`: no part of the {where} is a PreTrainedModel of transformers, which can be probed.")
    raise UserError(
        f"`model`: the {where} is of type {type(holder).__name__}, and neither is nor holds a PreTrainedModel of "
        f"transformers; {_there(_models_in(module))}."
    )


def _models_in(module: nn.Module) -> dict[str, Any]:
    """Return the models of transformers in a module that are in no other one of them, by their names."""
    from transformers import PreTrainedModel

    found: dict[str, Any] = {}
    for name, part in module.named_modules():
        is_inside = any(not outer or name.startswith(f"{outer}.") for outer in found)
        if isinstance(part, PreTrainedModel) and not is_inside:
            found[name] = part
    return found


def _there(found: dict[str, Any]) -> str:
    if not found:
        return "there is no PreTrainedModel"
    named = [f"`{name}` ({type(model).__name__})" for name, model in found.items()]
    return f"there {'is' if len(named) == 1 else 'are'} {', '.join(named)}"


def before_others(callbacks: Sequence[Any], kind: type) -> list[Any]:
    """Return callbacks with those of a kind first, which then measure what others have set up for the validation."""
    return sorted(callbacks, key=lambda one: not isinstance(one, kind))
