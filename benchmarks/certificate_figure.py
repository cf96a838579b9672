"""Draw what certificates.json holds: gains over the length of the message."""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter


def draw_curve(folder: Path) -> None:
    """Draw certified files as solid marks, and projections from some documents as hollow ones."""
    result = json.loads((folder / "certificates.json").read_text())
    figure, axes = plt.subplots(1, 3, figsize=(15, 4), layout="constrained")
    for axis, level in zip(axes, ("document", "token"), strict=False):
        _draw_files(axis, result["files"], level)
        _draw_points(axis, result.get("points", []), level)
        axis.set(title=f"{level} level", xscale="log", xlabel="message, bits")
        axis.set_ylabel("gain, bits per token")
        axis.set_ylim(0.0)
        axis.legend(fontsize="x-small", loc="lower center")
    _draw_inequalities(axes[2], result)
    for kind in ("svg", "png"):
        figure.savefig(folder / f"certificates.{kind}", dpi=110)
    plt.close(figure)


def _draw_files(axis: Any, files: list[dict[str, Any]], level: str) -> None:
    files = sorted((one for one in files if "inequalities" in one), key=lambda one: one["bits"])
    bits = [one["bits"] for one in files]
    axis.plot(bits, [one[level]["gain"]["bound"] for one in files], "o", ms=8, label="certified")
    axis.plot(bits, [one[level]["held_out"]["gain"] for one in files], "k_", label="held out")


def _draw_points(axis: Any, points: list[dict[str, Any]], level: str) -> None:
    for way in dict.fromkeys(point["way"] for point in points):
        those = [point for point in points if point["way"] == way]
        axis.plot(
            [point["bits"] for point in those],
            [point[level]["bound"] for point in those],
            "o-",
            mfc="none",
            lw=1,
            label=f"{way}, {those[0]['kind']}",
        )


def _draw_inequalities(axis: Any, result: dict[str, Any]) -> None:
    points = [point for point in result.get("points", []) if point["way"] == "trained on"]
    shown = points or [one for one in result["files"] if "inequalities" in one]
    shown = sorted(shown, key=lambda one: one["bits"])
    for name in shown[0]["inequalities"] if shown else ():
        values = [one["inequalities"][name] for one in shown]
        axis.plot([one["bits"] for one in shown], values, "o-", mfc="none", lw=1, label=name)
    kind = points[0]["kind"] if points else "certified files"
    axis.set(title=f"document level by inequality,\n{kind}", xscale="log", xlabel="message, bits")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.axhline(0.0, color="grey", lw=0.5)
    axis.set_ylim(-0.1)
    axis.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
