"""What decides a number decides its name: hashes of settings, text and source."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from hylorada.experiments.config import TrainConfig

# The source that decides the numbers of a run.
RUN_SOURCE = (
    "files.py",
    "seeds.py",
    "text/*.py",
    "models/*.py",
    "adapters/*.py",
    "subspace/*.py",
    "training/*.py",
    "experiments/config.py",
    "experiments/assembly.py",
    "experiments/run.py",
)
# What is shown or where it is kept changes no number.
WITHOUT_EFFECT = {"training": ("progress", "report_to", "workers"), "data": ("cache",)}


def identify(config: TrainConfig, data_fingerprint: str, repetition: int = 0) -> dict[str, str]:
    """Return the run's id and the hashes of configuration, data and code that it is made of."""
    settings = deciding_settings(config)
    if repetition:
        settings["repetition"] = repetition
    parts = {
        "config": settings_hash(settings),
        "data": short_hash(data_fingerprint),
        "code": source_sha256(RUN_SOURCE)[:16],
    }
    return {"id": short_hash("/".join(parts.values())), **parts}


def deciding_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the part of a configuration that decides numbers, in plain types."""
    settings = config.as_dict()
    settings.pop("out")
    for section, names in WITHOUT_EFFECT.items():
        for name in names:
            settings[section].pop(name)
    return settings


@cache  # a file that is edited later is not what this process runs
def source_sha256(patterns: tuple[str, ...]) -> str:
    """Return a hash of files of this package, which tells of edits that a version does not."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in package.glob(pattern)):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()


def settings_hash(settings: dict[str, Any]) -> str:
    """Return a short hash of settings in plain types, whatever their order."""
    return short_hash(json.dumps(settings, default=str, sort_keys=True))


def short_hash(text: str) -> str:
    """Return the first 64 bits of a text's SHA-256, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
