"""Verifier ``language``: the share of letters that belong to the scripts in which a language is written.

Limit: it tells scripts apart, not languages. French passes for English; Chinese or Russian does not.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Literal

from assay.types import Row, Verdict
from assay.verifiers.contract import Verifier, accept, reject

Language = Literal["ar", "de", "el", "en", "es", "fr", "he", "hi", "it", "ja", "ko", "nl", "pl", "pt", "ru", "uk", "zh"]

_LATIN = ("LATIN",)
SCRIPTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("de", "en", "es", "fr", "it", "nl", "pl", "pt"), _LATIN),
    "ar": ("ARABIC",),
    "el": ("GREEK",),
    "he": ("HEBREW",),
    "hi": ("DEVANAGARI",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA"),
    "ko": ("HANGUL",),
    "ru": ("CYRILLIC",),
    "uk": ("CYRILLIC",),
    "zh": ("CJK",),
}
"""How the Unicode names of a language's letters begin."""


def language(*, language: Language = "en") -> Verifier:
    """Reward = letters of the language's scripts / all letters; 1 for a text without letters. Looks at no gold."""
    scripts = SCRIPTS[language]

    def verify(row: Row, completion: str) -> Verdict:
        letters = [c for c in completion if c.isalpha()]
        ours = sum(_script(c) in scripts for c in letters)
        if ours == len(letters):
            return accept()
        return reject(f"{len(letters) - ours} of {len(letters)} letters are not {language}'s", ours / len(letters))

    return verify


@cache
def _script(letter: str) -> str:
    """The first word of the letter's Unicode name, width and style left out: LATIN, CYRILLIC, CJK."""
    words = unicodedata.name(letter, "").split()
    while words and words[0] in ("FULLWIDTH", "HALFWIDTH", "MODIFIER", "MATHEMATICAL"):
        del words[0]
    return words[0] if words else ""
