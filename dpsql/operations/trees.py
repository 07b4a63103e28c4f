"""Trees of expressions: nodes of one are replaced by others."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp


def map_tree(root: exp.Expr, visit: Callable[[exp.Expr], exp.Expr | None]) -> exp.Expr:
    """Replace nodes from the root down.

    Args:
        root: a tree, which is changed in place.
        visit: returns another node, which is put in the place as it is; None to keep a node with all its parts; or the
            node itself to visit its parts in turn.

    """
    replaced = visit(root)
    if replaced is not root:
        return replaced or root
    for child in list(root.iter_expressions()):
        mapped = map_tree(child, visit)
        if mapped is not child:
            child.replace(mapped)
    return root
