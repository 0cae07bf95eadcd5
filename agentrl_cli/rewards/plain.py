r"""Reads answers that need no algebra: numbers, choice letters and words, each exactly.

Numbers become fractions, never floats, so `12`, `012`, `12.0`, `\frac{24}{2}` and `1.2 \times 10^1` are
one answer and `0.333` is not a third. What is not wholly understood is not read at all: `204 or 205`,
`36 million` and `36x` are no numbers.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 2000
"""Longer answers are not read."""

_TEXT_COMMAND = r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|mathsf|mbox|boldsymbol)"
_WRAPPER = re.compile(_TEXT_COMMAND + r"\s*\{([^{}]*)\}")
_REPLACED = str.maketrans(
    {
        "\u2212": "-",
        "\u2013": "-",
        "\ufe63": "-",
        "\xd7": r"\times ",
        "\xb7": r"\cdot ",
        "\u22c5": r"\cdot ",
        "\u03c0": r"\pi ",
        "\u221e": r"\infty ",
        "\u221a": r"\sqrt ",
        "\u222a": r"\cup ",
        "\u2229": r"\cap ",
        "\u2208": r"\in ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u2260": r"\ne ",
        "\xb1": r"\pm ",
        "\xb0": r"^\circ ",
        "\u2044": "/",
        "\xbd": r"\frac{1}{2}",
        "\xbc": r"\frac{1}{4}",
        "\xbe": r"\frac{3}{4}",
        "\xb2": "^{2}",
        "\xb3": "^{3}",
        "\xa0": " ",
        "\t": " ",
        "\n": " ",
        "\r": " ",
        "\ufffd": "",
    }
)
"""Characters that models write for LaTeX commands, and those that mean nothing."""
_FULLWIDTH_FIRST, _FULLWIDTH_LAST, _FULLWIDTH_SHIFT = 0xFF01, 0xFF5E, 0xFEE0

_MATH_MARKS = re.compile(r"(?<!\\)\\[()\[\]]|\$|\\displaystyle(?![A-Za-z])")
_BIG_DELIMITER = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\.?")
_NEGATIVE_SPACE = re.compile(r"(,)\\!\s*|(?<!\\)\\!")
_SPACING = re.compile(r"(?<!\\)\\[,;: ]|~|\\q?quad(?![A-Za-z])")
_THIN_THOUSANDS = re.compile(r"(?<=\d)(?:\\[,;: ]|~)(?=\d{3}(?!\d))")

_LONG_UNITS = "cm|mm|km|dm|kg|mg|ml|mL|mph|kph|ft|in|lb|lbs|oz|hr|hrs|min|sec"
_UNITS = rf"(?:{_LONG_UNITS}|m|g|s|h|l|L|J|N|W|V)"
_POWER = r"(?:\s*\^\s*\{?\s*-?[0-9]\s*\}?)?"
_TEXT_UNIT = re.compile(r"\s*" + _TEXT_COMMAND + r"\s*\{([^{}0-9]*)\}" + _POWER + r"$")
_WORD_UNIT = re.compile(r"(?<=[0-9}.])\s+((?:[A-Za-z]{3,}|" + _UNITS + r")(?:[ /.]+(?:[A-Za-z]{2,}|" + _UNITS + r"))*)"
                        + _POWER + r"$")  # fmt: skip
_GLUED_UNIT = re.compile(rf"(?<=[0-9])(?:{_LONG_UNITS})" + _POWER + r"$")
_DEGREE = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)$")
_PERCENT = re.compile(r"\s*(?:\\?%|" + _TEXT_COMMAND + r"\s*\{\s*(?:percent|%)\s*\}|\s(?:percent))$")
_NOT_A_UNIT = re.compile(
    r"\b(?:or|and|not|to|than|least|most|about|approx\w*|roughly|times|plus|minus|over|mod|modulo|base|half|halves"
    r"|squared|cubed|factorial|dozens?|score|(?:hundred|thousand|million|billion|trillion|ten|hundredth)\w*)\b",
    re.IGNORECASE,
)

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = re.compile(
    r"([+-]?)\s*(" + _DIGITS + r"(?:\.\d*)?|\.\d+)"
    r"(?:[eE]([+-]?\d{1,3})|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*([+-]?\d{1,3})\s*\}|(\d)))?"
)
_FRACTION = re.compile(
    r"([+-]?)\s*(?:(\d+)\s*)?\\[dtc]?frac\s*(?:\{\s*(-?" + _DIGITS + r")\s*\}|(\d))"
    r"\s*(?:\{\s*(" + _DIGITS + r")\s*\}|(\d))"
)
_SLASH = re.compile(r"([+-]?)\s*(?:(\d+)\s+)?(" + _DIGITS + r")\s*/\s*(" + _DIGITS + r")")
_UNEQUAL = re.compile(
    r"[<>!,;]|\\(?:neq?|l[et]q?|g[et]q?|ll|gg|not|approx|equiv|sim\w*|cong)(?![A-Za-z])|[0-9]\s+[A-Za-z]"
    r"|\b(?:or|and|not)\b"
)
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer)\s*:?\s*)?[(\[]?\s*([A-Za-z])\s*(?:[)\]]?[.):,]?|[)\]]?[.):]\s*(\S.*)|[)\]]\s+(\S.*))",
    re.IGNORECASE | re.DOTALL,
)
_MORE_CHOICES = re.compile(r"\b(?:or|and)\s+[(\[]?[A-J]\b|(?:^|[\s(\[,;])[A-J][.):\]]|^[A-J]$", re.IGNORECASE)
_GOLD_WORDS = re.compile(_TEXT_COMMAND + r"\s*\{[^{}0-9\\]*[A-Za-z][^{}0-9\\]*\}|[A-Za-z]{4,}(?: [A-Za-z]+)*")
_BASED = re.compile(r"([0-9A-Za-z]+)\s*_\s*(?:\{\s*(?:" + _TEXT_COMMAND + r"\s*\{\s*)?(\d+|[a-z]+)\s*\}?\s*\}|(\d))")


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value, and whether a percent sign stood behind it."""

    value: Fraction
    is_percent: bool = False


def clean(text: str) -> str:
    """Return `text` without control characters and math marks, with ASCII digits, signs and spaces.

    Thin spaces and `{,}` between groups of three digits become commas.
    """
    chars = []
    for char in text.translate(_REPLACED):
        if _FULLWIDTH_FIRST <= ord(char) <= _FULLWIDTH_LAST:
            char = chr(ord(char) - _FULLWIDTH_SHIFT)
        category = unicodedata.category(char)
        if category not in ("Cc", "Cf"):
            chars.append(str(unicodedata.decimal(char)) if category == "Nd" else char)
    plain = _NEGATIVE_SPACE.sub(r"\1", "".join(chars)).replace(r"\$", "$").replace("{,}", ",")
    plain = _BIG_DELIMITER.sub("", _MATH_MARKS.sub("", plain))
    return _SPACING.sub(" ", _THIN_THOUSANDS.sub(",", plain)).strip()


@functools.lru_cache(maxsize=4096)
def read_number(text: str) -> Number | None:
    r"""Return the number that a whole answer stands for, or None.

    Leading zeros, thousands commas, currency signs, units (`36\text{ cm}`, `36 miles per hour`, degrees), a
    percent sign and `x =` do not matter; simple and mixed fractions and powers of ten are worked out.
    """
    if len(text) > MAX_CHARS:
        return None
    plain = _right_side(clean(text))
    if plain is None:
        return None
    plain = _unwrap(plain.rstrip(". ")).lstrip("€£¥ ")
    is_percent = _PERCENT.search(plain) is not None
    plain = strip_units(_PERCENT.sub("", plain), bare_words=True)
    value = _parse(_unwrap(plain.strip()).lstrip("€£¥ "))
    return None if value is None else Number(value, is_percent)


def strip_units(text: str, *, bare_words: bool) -> str:
    """Return `text` without the unit at its end; words that change the value or hedge are no unit.

    Args:
        bare_words: Take off words outside text commands too, which in an expression may be variables.
    """
    for pattern in (_DEGREE, _TEXT_UNIT, *((_WORD_UNIT, _GLUED_UNIT) if bare_words else ())):
        match = pattern.search(text)
        if match and match.start() > 0 and not _NOT_A_UNIT.search(match.group(0)):
            text = text[: match.start()].rstrip()
    return text


def read_choice(text: str) -> str | None:
    """Return the one letter that an answer chooses (`C`, `(c)`, `C. 5 m`) in capitals, or None."""
    plain = _unwrap(_WRAPPER.sub(r"\1", clean(text[:MAX_CHARS]))).strip()
    match = _CHOICE.fullmatch(plain)
    if match is None or _MORE_CHOICES.search(match.group(2) or match.group(3) or ""):
        return None
    return match.group(1).upper()


def read_words(text: str) -> str:
    """Return an answer in words, without text commands, brackets around it, case and double spaces."""
    plain = _WRAPPER.sub(r"\1", clean(text)).strip(" .")
    if plain.startswith("(") and plain.endswith(")"):
        plain = plain[1:-1]
    return " ".join(plain.split()).casefold()


def is_words(gold: str) -> bool:

    return _GOLD_WORDS.fullmatch(gold.strip()) is not None


def read_based(text: str) -> tuple[str, str] | None:
    """Return digits and base of a numeral such as `4210_{5}`, or None."""
    match = _BASED.fullmatch(clean(text))
    return (match.group(1).upper(), match.group(2) or match.group(3)) if match else None


def has_changing_words(text: str) -> bool:
    """Whether words stand in the text that change a value next to them (million, dozen, …); `and` joins values."""
    words = (word for found in _WRAPPER.findall(clean(text)) for word in _NOT_A_UNIT.findall(found))
    return any(word.lower() not in ("and", "or") for word in words)


def _right_side(text: str) -> str | None:
    """Return what stands right of the last equals sign, or None if the left is more than a name or a sum."""
    parts = text.split("=")
    if not all(part.strip() for part in parts) or any(_UNEQUAL.search(part) for part in parts[:-1]):
        return None
    return parts[-1].strip()


def _unwrap(text: str) -> str:
    """Take off text commands, braces and brackets that span the whole text."""
    while True:
        match = _WRAPPER.fullmatch(text)
        inner = match.group(1) if match else text
        if match is None and text[:1] + text[-1:] in ("{}", "()") and not set("{}()") & set(text[1:-1]):
            inner = text[1:-1]
        inner = inner.strip()
        if inner == text:
            return text
        text = inner


def _parse(text: str) -> Fraction | None:
    if match := _DECIMAL.fullmatch(text):
        sign, digits, *exponents = match.groups()
        exponent = int(next((e for e in exponents if e), "0"))
        value = Fraction(digits.replace(",", "")) * Fraction(10) ** exponent
        return -value if sign == "-" else value
    if match := _FRACTION.fullmatch(text):
        sign, whole, top, top_digit, bottom, bottom_digit = match.groups()
        return _fraction(sign, whole, top or top_digit, bottom or bottom_digit)
    if match := _SLASH.fullmatch(text):
        return _fraction(*match.groups())
    return None


def _fraction(sign: str, whole: str | None, top: str, bottom: str) -> Fraction | None:
    numerator, denominator = int(top.replace(",", "")), int(bottom.replace(",", ""))
    if denominator == 0 or (whole and numerator < 0):
        return None
    value = int(whole or 0) + Fraction(numerator, denominator)
    return -value if sign == "-" else value
