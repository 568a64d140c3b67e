"""What heads attend to, by weight and by norm."""

from __future__ import annotations

from collections.abc import Mapping

from probing.claims.measures.registry import NotMeasurable, Subject, measure
from probing.claims.verdict import Measured

# The first token of BERT's sequences and of RoBERTa's, as the survey of heads names it.
_FIRST = ("[CLS]", "<s>")
_SPECIAL = "special tokens"


@measure("heads")
def heads_idle_at_first_token(subject: Subject) -> Measured:
    """Return the share of heads that attend much to the first token and read their shortest vectors there.

    A head attends much to a token that gets more attention than its share of the tokens (`lift` above 1). The norm of
    the vectors that are read from a type of tokens is its mass by norm divided by its mass by weight; that of the first
    token is the least if words and every other type of tokens have a larger one. The control is the share of heads for
    which both are true of the last special token.
    """
    by_head: dict[tuple[int, int], dict[str, dict[str, float]]] = {}
    for row in subject.run("heads").heads:
        if row["measure"] in ("lift", "mass", "norm_mass"):
            of_type = by_head.setdefault((row["layer"], row["head"]), {}).setdefault(row["to"], {})
            of_type[row["measure"]] = row["value"]
    types = next(iter(by_head.values()), {})
    first = next((name for name in _FIRST if name in types), None)
    if first is None or _SPECIAL not in types:
        raise NotMeasurable("its sequences have no [CLS] or <s>, or heads were not measured")
    last = next((name for name in ("[SEP]", "</s>") if name in types), None)
    found = [_is_idle(head, first) for head in by_head.values()]
    others = [_is_idle(head, last) for head in by_head.values()] if last else []
    control = sum(others) / len(others) if others else None
    return Measured.exact(sum(found) / len(found), control=control)


def _is_idle(head: Mapping[str, Mapping[str, float]], name: str) -> bool:
    norms = {one: _ratio(of["norm_mass"], of["mass"]) for one, of in head.items() if one != _SPECIAL}
    norms["words"] = _ratio(1 - head[_SPECIAL]["norm_mass"], 1 - head[_SPECIAL]["mass"])
    own = norms.pop(name)
    return head[name]["lift"] > 1 and all(own < other for other in norms.values())


def _ratio(by_norm: float, by_weight: float) -> float:
    return by_norm / by_weight if by_weight > 0 else 0.0
