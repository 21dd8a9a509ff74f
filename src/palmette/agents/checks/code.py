"""Checks of code, which is read and never run."""

import ast

from palmette.agents.checks.verdict import Verdict, broken, kept
from palmette.agents.subject import Subject

_CHUNKED_KEYS = ("use_liger_kernel", "use_liger_loss", "actor_rollout_ref.model.use_fused_kernels")


def _tree(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def inplace_scaling(subject: Subject) -> Verdict | None:
    """Logits are scaled in place only directly after the matrix product, never through `.data`."""
    tree = _tree(subject.code) if subject.code else None
    if tree is None:
        return None
    capped, scaled = 0, 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call | ast.AugAssign):
            continue
        if isinstance(node, ast.Call) and _called(node) == "tanh":
            capped = capped or node.lineno
        if _scales_logits(node):
            scaled = node.lineno
            if ".data" in ast.unparse(node):
                return broken(f"line {scaled}: scaled through .data, which autograd does not see: gradients are wrong")
    if scaled and capped and capped <= scaled:
        return broken(f"line {scaled}: scaled in place after tanh (line {capped}), whose saved output it changes")
    return kept("logits are scaled in place where nothing was saved") if scaled else None


def chunked_logprobs(subject: Subject) -> Verdict | None:
    """Log-probabilities of chosen tokens are taken without a softmax over all tokens at once."""
    for key in _CHUNKED_KEYS:
        if key in subject.foreign:
            if subject.foreign[key]:
                return kept(f"{key} is true")
            return broken(f"{key} is false: logits of all tokens are held at once", f"{key} true")
    tree = _tree(subject.code) if subject.code else None
    if tree is None:
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if not any(_called(call) in ("log_softmax", "logsumexp", "selective_log_softmax") for call in calls):
        return None
    whole = [call for call in calls if _called(call) == "log_softmax"]
    in_loop = any(isinstance(node, ast.For | ast.ListComp | ast.GeneratorExp) for node in ast.walk(tree))
    if whole and not in_loop:
        return broken(f"line {whole[0].lineno}: log_softmax over all tokens holds a second copy of all logits")
    return kept("log-probabilities are computed in chunks")


def _scales_logits(node: ast.Call | ast.AugAssign) -> bool:
    if isinstance(node, ast.Call):
        return _called(node) in ("div_", "mul_") and "logit" in ast.unparse(node.func)
    return isinstance(node.op, ast.Div) and "logit" in ast.unparse(node.target)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
