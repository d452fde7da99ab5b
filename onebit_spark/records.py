"""The type of what is stored as JSON: metadata, certificates, figures of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Record = Mapping[str, Any]  # an object of JSON, whose values depend on its keys
Fields = dict[str, Any]  # the same, while it is made
