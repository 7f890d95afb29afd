"""A griffe extension that converts the markup in dingsdk's docstrings to Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|func|meth|mod):`~?([^`]+)`")
LIST = re.compile(r"^( *)(?![-*] |$)(.*)\n(?=\1[-*] )", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Changes the text of each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite roles as code, add an empty line before lists, and use Google section names."""
        if obj.docstring is None:
            return
        text = ROLE.sub(r"``\1``", obj.docstring.value)
        text = LIST.sub(r"\1\2\n\n", text)
        obj.docstring.value = text.replace("\nExample:\n", "\nExamples:\n")
