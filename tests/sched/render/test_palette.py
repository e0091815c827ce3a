"""The colours can be told apart, by colour-blind eyes too, and what is written on them is read."""

import math
from itertools import combinations

import pytest

from counterpoise.sched.render.palette import (
    PAINTS,
    choose_colour,
    choose_ink,
    luminance,
    tint,
    to_linear_rgb,
)

MAIN = ("F", "B", "I", "W", "S", "T", "C", "EF", "EB")
# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    seen = to_linear_rgb(colour)
    red, green, blue = (
        min(1.0, max(0.0, sum(w * c for w, c in zip(row, seen, strict=True))))
        for row in VISION[vision]
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("vision", VISION)
def test_any_two_kinds_differ_for_every_eye(vision: str) -> None:
    for one, other in combinations(MAIN, 2):
        distance = math.dist(lab(PAINTS[one], vision), lab(PAINTS[other], vision))
        assert distance > 25, (one, other)


@pytest.mark.parametrize("name", PAINTS)
@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_text_on_a_pass_has_the_contrast_that_wcag_asks_for(name: str, chunk: int) -> None:
    fill = tint(PAINTS[name], chunk, 3)
    dark, light = sorted((luminance(fill), luminance(choose_ink(fill))))
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_chunks_of_a_kind_differ() -> None:
    for name in ("F", "B", "I", "W"):
        fills = [tint(PAINTS[name], chunk, 2) for chunk in (0, 1)]
        assert math.dist(*(lab(fill, "normal") for fill in fills)) > 15


def test_kinds_of_others_get_colours_of_their_own() -> None:
    names = ("F", "X", "Y")
    assert choose_colour("X", names) != choose_colour("Y", names)
