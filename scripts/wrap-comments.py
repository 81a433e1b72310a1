#!/usr/bin/env python3
"""Wraps comments of Rust files that reach beyond 100 columns, which stable rustfmt leaves alone.

Usage: scripts/wrap-comments.py FILE.rs…

Only paragraphs with a line that is too long change. Code fences, tables and headings stay as they
are; list items keep their hanging indent; `code` and [links] are not broken.
"""

import re
import sys
from pathlib import Path

COLUMNS = 100
COMMENT = re.compile(r"^(\s*)(//[/!]?)( ?)(.*)$")
ITEM = re.compile(r"^(\s*)([*+-]|\d+[.)])\s+")
# An unbreakable word: a span of code, a link, or letters; with what touches it.
WORD = re.compile(r"(?:`[^`]*`|\[[^\]]*\](?:\([^)]*\))?|[^\s`\[]|[`\[])+")
# What would mean something else at the beginning of a line.
STARTS_BLOCK = re.compile(r"^([*+-]|\d+[.)]|#+|>|\|)$")


def wrap(words, first, rest):
    """Lines of at most COLUMNS; `first` and `rest` are what they begin with."""
    lines, line, empty = [], first, True
    for word in words:
        longer = line + ("" if empty else " ") + word
        if empty or len(longer) <= COLUMNS or STARTS_BLOCK.match(word):
            line = longer
        else:
            lines.append(line)
            line = rest + word
        empty = False
    return [*lines, line]


def rewrap(paragraph, prefix):
    """A paragraph's lines, wrapped; `paragraph` holds the text after the comment mark."""
    item = ITEM.match(paragraph[0])
    if item:
        first = prefix + " " + paragraph[0][: item.end()]
        rest = prefix + " " + " " * item.end()
        body = [paragraph[0][item.end() :], *paragraph[1:]]
    else:
        indent = re.match(r"\s*", paragraph[0]).group()
        first = rest = prefix + " " + indent
        body = paragraph
    return wrap(WORD.findall(" ".join(line.strip() for line in body)), first, rest)


def process(text):
    result, paragraph, prefix, fenced = [], [], None, False

    def flush():
        nonlocal paragraph
        original = [f"{prefix} {line}".rstrip() for line in paragraph]
        too_long = any(len(line) > COLUMNS for line in original)
        result.extend(rewrap(paragraph, prefix) if too_long else original)
        paragraph = []

    for line in text.split("\n"):
        match = COMMENT.match(line)
        body = match.group(4) if match else ""
        found = match.group(1) + match.group(2) if match else None
        structural = body.strip() == "" or body.lstrip().startswith(("```", "|", "#", ">"))
        if match and body.lstrip().startswith("```"):
            fenced = not fenced
        plain = match and match.group(3) and not fenced and not structural
        if paragraph and (not plain or found != prefix or ITEM.match(body)):
            flush()
        if plain:
            prefix = found
            paragraph.append(body)
        else:
            fenced = fenced and match is not None
            result.append(line)
    if paragraph:
        flush()
    return "\n".join(result)


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        old = path.read_text(encoding="utf-8")
        new = process(old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(f"wrapped {name}")


if __name__ == "__main__":
    main()
