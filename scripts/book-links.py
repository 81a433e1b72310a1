#!/usr/bin/env python3
"""A preprocessor of mdBook: links that lead out of docs/ lead from the built book into the checkout.

On a code host `../crates/state/src/lib.rs` is right as it stands. The book is built into target/book,
one directory deeper, and mdBook would turn `.md` into `.html`; a dot that is encoded stays. Within the
book, a README becomes the index of its directory.
"""

import json
import os.path
import re
import sys

LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")


def rewrite(page, content):
    """The page's text, `page` being its path below docs/."""
    here = os.path.dirname(page)

    def change(match):
        target = os.path.normpath(os.path.join("docs", here, match[2]))
        if target.startswith("docs" + os.sep):
            return re.sub(r"\bREADME\.md", "index.md", match[0])
        path = os.path.relpath(target, os.path.join("target/book", here))
        return match[1] + re.sub(r"\.md$", "%2Emd", path) + match[4]

    return LINK.sub(change, content)


def walk(items):
    """Rewrites the chapters in place."""
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter and chapter["path"]:
            chapter["content"] = rewrite(chapter["path"], chapter["content"])
            walk(chapter["sub_items"])


if sys.argv[1:2] != ["supports"]:
    _, book = json.load(sys.stdin)
    walk(book.get("items") or book.get("sections"))
    json.dump(book, sys.stdout)
