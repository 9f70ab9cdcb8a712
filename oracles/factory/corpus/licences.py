"""The licences of wheels: read from their metadata, and kept to a short list."""

import re
from email.message import Message

ALLOWED = frozenset({"Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "MIT", "PSF-2.0"})
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}
_PLAIN = {
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "bsd": "BSD",
    "mit license": "MIT",
    **{name.lower(): name for name in ALLOWED},
}


def licence_of(metadata: Message) -> str | None:
    """Return the licence that a wheel's metadata names, as an SPDX expression, or None if it is not allowed.

    Read are ``License-Expression``, else the classifiers, else a ``License`` of one line. Every name in it must be of
    ``ALLOWED``, also if the user may choose.
    """
    expression = metadata.get("License-Expression") or _of_classifiers(metadata) or _of_field(metadata)
    names = re.split(r"\s+(?:AND|OR)\s+", expression.strip("() "))
    return expression if ALLOWED.issuperset(names) else None


def _of_classifiers(metadata: Message) -> str:
    marks = [line.split(" :: ") for line in metadata.get_all("Classifier", [])]
    names = sorted({mark[-1] for mark in marks if mark[0] == "License" and mark[-1] != "OSI Approved"})
    return " AND ".join(_CLASSIFIERS.get(name, name) for name in names)


def _of_field(metadata: Message) -> str:
    field = (metadata.get("License") or "").strip()
    return _PLAIN.get(field.lower(), field)
