"""The checker behind the shapes and types in signatures: an int may stand for a float."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
