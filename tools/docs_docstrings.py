"""An extension of griffe, which reads the docstrings for the Python API: one entry may describe several arguments, and
their names may take several lines. griffe expects all names of an entry on its first line."""

import re

import griffe

ENTRY = re.compile(r"^( {4,})(\w+,(?:\s+\w+,)*\s+\w+:)", re.MULTILINE)


class JoinNames(griffe.Extension):
    def on_function(self, *, func, **_others):
        if func.docstring:
            joined = lambda match: match[1] + " ".join(match[2].split())
            func.docstring.value = ENTRY.sub(joined, func.docstring.value)
