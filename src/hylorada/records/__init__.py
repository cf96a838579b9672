"""What runs, evaluations, certificates and studies leave behind: strict, typed, stored as JSON.

Whoever makes a record writes it; page, tables, verification and tests read the same classes. This
room imports nothing of the others. `hylorada.files` reads and writes records, and refuses an
unknown or wrong field by its place.
"""

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record: its fields and their types are the file format."""
