"""What a reader of a figure meets: its caption, and the words in it."""

import re

from hylorada.records.studies import Study
from hylorada.report.canvas import WIDE, Sheet, styled
from hylorada.report.figures import Draw


def words(draw: Draw, study: Study, width: float = WIDE) -> tuple[str, list[str]]:
    """Return what a figure says of itself, and the words drawn in it."""
    with styled():
        sheet = Sheet(width)
        caption = draw(study, sheet)
        assert caption is not None
        svg = sheet.svg("one", "")
    said = f"{caption.text} {caption.numbers}".replace("\u00a0", " ")
    found = re.findall("<text[^>]*>([^<]*)</text>", svg)
    return said, [text.replace("\u00a0", " ").replace("&lt;", "<") for text in found]


def is_drawn(draw: Draw, study: Study) -> bool:
    """Return whether a study has the data of a figure."""
    with styled():
        return draw(study, Sheet(WIDE)) is not None
