"""The reference pages of the public modules: signatures and docstrings of the code, as Markdown."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_ROLE = re.compile(r":(?:attr|class|func|meth|mod):`~?([^`]+)`")
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example|Examples):$", re.MULTILINE)
_MODULES = re.compile(r"\b(?:typing|collections\.abc|pathlib|dingsdk[\w.]*)\.(?=[A-Z])")
_ENTRY = re.compile(r"^    (?=\S)", re.MULTILINE)


def module_text(name: str) -> str:
    """Return the text of a public module: its docstring, and all names that it exports."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [
        each
        for each, found in sorted(vars(module).items())
        if getattr(found, "__module__", None) == name and each[0] != "_"
    ]
    parts = [_markdown(inspect.getdoc(module) or "")]
    for each in sorted(names):
        parts += _described(f"{name}.{each}", each, getattr(module, each))
    return "\n\n".join(filter(None, parts))


def _described(anchor: str, name: str, found: Any) -> Iterator[str]:
    yield f'## <a id="{anchor}"></a>`{name}`'
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        yield f"`{type(found).__name__}`. {_constant_docs().get(name, '')}".strip()
        return
    prefix = "class " if inspect.isclass(found) else ""
    yield f"```py\n{prefix}{name}{_signature(found)}\n```"
    yield _markdown(_own_doc(found))
    for member, value in vars(found).items() if inspect.isclass(found) else ():
        function = getattr(value, "__func__", getattr(value, "fget", value))
        doc = _own_doc(function)
        if member.startswith("_") or not doc:
            continue
        if inspect.isclass(value):
            yield f"### `{name}.{member}`"
        elif isinstance(value, property | functools.cached_property):
            yield f"### `{name}.{member}` (property)"
        elif inspect.isfunction(function):
            yield f"### `{name}.{member}`"
            yield f"```py\n{member}{_signature(function)}\n```"
        else:
            continue
        yield _markdown(doc)


def _own_doc(found: Any) -> str:
    """Return the docstring of an object, without those of its bases and those that were made."""
    doc = found.__dict__.get("__doc__") if inspect.isclass(found) else found.__doc__
    name = getattr(found, "__name__", "")
    return inspect.cleandoc(doc) if isinstance(doc, str) and not doc.startswith(f"{name}(") else ""


class _Source:
    """Is shown as a text by ``inspect.signature``, without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _shown(value: Any) -> Any:
    if value is inspect.Parameter.empty or isinstance(value, type):
        return value
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or repr(value)
    return _Source("..." if " at 0x" in text or len(text) > 80 else text)


def _signature(found: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    parameters = [
        each.replace(
            annotation=_shown(each.annotation),
            default=each.default if isinstance(each.default, str) else _shown(each.default),
        )
        for name, each in signature.parameters.items()
        if name not in ("self", "cls")
    ]
    is_class = inspect.isclass(found)
    returns = inspect.Signature.empty if is_class else _shown(signature.return_annotation)
    signature = signature.replace(parameters=parameters, return_annotation=returns)
    text = _MODULES.sub("", f"{signature}")
    if len(text) < 80:
        return text
    lines = []
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not any(line.startswith("    *") for line in lines):
            lines.append("    *,")
        lines.append(f"    {each},")
    end = text[text.rindex(") -> ") :] if ") -> " in text else ")"
    return _MODULES.sub("", "(\n" + "\n".join(lines) + f"\n{end}")


def _markdown(doc: str) -> str:
    """Return a docstring as Markdown: the entries of its sections become lists."""
    first, *rest = _SECTION.split(_ROLE.sub(r"``\1``", doc))
    parts = [first.strip()]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        parts.append(f"**{title}**")
        found = re.search(r"^(?=\S)", body, re.MULTILINE)
        inside, after = (body[: found.start()], body[found.start() :]) if found else (body, "")
        if title.startswith("Example"):
            code = inspect.cleandoc(inside)
            parts.append(f"```py\n{code}\n```" if code.startswith(">>>") else code)
        elif title in ("Returns", "Yields"):
            parts.append(" ".join(inside.split()))
        else:
            entries = [" ".join(each.split()) for each in _ENTRY.split(inside) if each.strip()]
            parts.append("\n".join(f"- {_marked(each)}" for each in entries))
        parts.append(after.strip())
    return "\n\n".join(filter(None, parts))


def _marked(entry: str) -> str:
    name, colon, text = entry.partition(": ")
    return f"`{name}`: {text}" if colon and len(name) < 60 else entry


@functools.cache
def _constant_docs() -> dict[str, str]:
    """Return the docstrings of the constants of all loaded modules of dingsdk, by their name."""
    docs: dict[str, str] = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not name.startswith("dingsdk") or not file:
            continue
        body = ast.parse(Path(file).read_text(encoding="utf-8")).body
        for each, after in itertools.pairwise(body):
            target = getattr(each, "target", None)
            if isinstance(each, ast.Assign):
                target = each.targets[0]
            if isinstance(target, ast.Name) and isinstance(after, ast.Expr):
                text = getattr(after.value, "value", None)
                docs[target.id] = " ".join(text.split()) if isinstance(text, str) else ""
    return docs
