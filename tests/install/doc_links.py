# SPDX-License-Identifier: Apache-2.0
"""Links of documents: every relative one has its target, and every #part is a heading there, in the repository and in what
is installed."""
import os
import re

from consumer import check

# Links of Markdown, pictures too; those of other places are not ours to check.
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")


def documents(folder):
    for base, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith((".", "build"))]  # which have others' documents
        yield from (os.path.join(base, name) for name in sorted(names) if name.endswith(".md"))


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return re.sub(r"(?ms)^```.*?^```$", "", file.read())  # code is no text


def headings(text):
    """Returns the anchor that sites make of a heading: lower case, letters, digits and hyphens."""
    found = re.findall(r"(?m)^#+ +(.*?) *$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def check_links(folder):
    """Names all that lead nowhere at once."""
    count, lost = 0, []
    for path in documents(folder):
        for target, part in LINK.findall(text_of(path)):
            where = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            name = "%s -> %s" % (os.path.relpath(path, folder), target + ("#" + part if part else ""))
            count += 1
            if not os.path.exists(where):
                lost.append(name + " (not there)")
            elif part and where.endswith(".md") and part not in headings(text_of(where)):
                lost.append(name + " (no such heading)")
    check(count > 50, "documents have links: %d" % count)
    check(not lost, "links lead somewhere: " + "; ".join(lost))
