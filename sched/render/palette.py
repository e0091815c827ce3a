"""The colours of all pages and pictures: of passes, and those that differ in light and dark.

The colours of the first block of PAINTS differ by more than 25 (CIE76 distance in Lab) for any two
kinds, as seen with normal, protan, deutan and tritan vision (Machado et al., 2009); a test holds
it. Colour is never the only sign: passes carry their letter where it fits.
"""

from collections.abc import Mapping

WHITE = "#ffffff"
INK = "#101418"

PAINTS = {  # by kind of pass: see sched/ir/kinds.py
    "F": "#4961d4",
    "B": "#fbb02d",
    "I": "#cf6230",
    "W": "#3ab08b",
    "S": "#83307d",
    "T": "#b68ad4",
    "C": "#444a40",
    "EF": "#bff1fb",
    "EB": "#f1ef96",
    "GF": "#8fd3a8",
    "GB": "#4f9d78",
    # Rarer ones, seen beside few of the others.
    "L": "#8f2f5b",
    "E": "#c26a94",
    "G": "#dcb2c6",
    "IF": "#cfd8de",
    "IB": "#94a3ad",
    "O": "#2b3a42",
    # Collectives of the vocabulary passes, on lanes of their own.
    "CX": "#6f8f6a",
    "CM": "#c2a878",
    "CS": "#7a98b5",
    "CG": "#a98a8a",
    "CI": "#8f9a6b",
    "CJ": "#8d86a8",
}
OTHER = ("#8a9099", "#d7b98e", "#6f8f6a", "#9db4c8")
# CSS variables, each with its light and its dark value.
THEME: Mapping[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#15181c"), "sheet": ("#f7f7f5", "#0e1013"), "row": ("#f3f3f0", "#1b1f24"),
    "ink": ("#16191d", "#eceae4"), "muted": ("#5f6770", "#98a0a9"), "rule": ("#e2e3e0", "#2b3036"),
    "edge": ("rgb(0 0 0/.28)", "rgb(255 255 255/.34)"),
    "work": ("#2f3e4e", "#8496a8"), "waiting": ("#bb4a26", "#ea7b5e"),
    "padding": ("#b9b4a8", "#565a60"), "inside": ("#ffffff", "#0e1013"),
    "bad": ("#b8492f", "#f08a6e"), "measured": ("#1f8a6b", "#57c8a4"),
    "probed": ("#3f57cf", "#93a5ff"), "modelled": ("#c8562b", "#ee8a62"),
}  # fmt: skip


def make_theme_css(colours: Mapping[str, tuple[str, str]] = THEME, selector: str = "svg") -> str:
    r"""Return a style sheet that defines CSS variables, with other values in the dark.

    >>> make_theme_css({"ink": ("#000", "#fff")})
    'svg{--ink:#000}\n@media screen and (prefers-color-scheme:dark){svg{--ink:#fff}}\n'
    """
    light = ";".join(f"--{name}:{values[0]}" for name, values in colours.items())
    dark = ";".join(f"--{name}:{values[1]}" for name, values in colours.items())
    media = "@media screen and (prefers-color-scheme:dark)"
    return f"{selector}{{{light}}}\n{media}{{{selector}{{{dark}}}}}\n"


def choose_colour(kind: str, kinds: tuple[str, ...] = ()) -> str:
    """Return the colour of a kind; an unknown one gets a quiet one by its place in `kinds`.

    >>> choose_colour("F"), choose_colour("X", ("F", "X"))
    ('#4961d4', '#d7b98e')
    """
    place = kinds.index(kind) if kind in kinds else 0
    return PAINTS.get(kind, OTHER[place % len(OTHER)])


def tint(fill: str, chunk: int, chunks: int) -> str:
    """Return the fill for a chunk of a stage: the first as it is, later ones nearer to white.

    >>> tint("#4961d4", 0, 2), tint("#4961d4", 1, 2)
    ('#4961d4', '#95a3e6')
    """
    share = 0.42 * chunk / max(chunks - 1, 1)
    return "#" + "".join(f"{round(c + (255 - c) * share):02x}" for c in _bytes(fill))


def choose_ink(fill: str) -> str:
    """Return the colour of text on a fill: white or near black, the one of higher contrast.

    >>> choose_ink("#4961d4"), choose_ink("#fbb02d")
    ('#ffffff', '#101418')
    """
    return WHITE if luminance(fill) < 0.19 else INK


def luminance(colour: str) -> float:
    """Return the relative luminance of an sRGB colour (WCAG 2.2), 0 to 1.

    >>> round(luminance("#ffffff"), 3)
    1.0
    """
    red, green, blue = to_linear_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def to_linear_rgb(colour: str) -> tuple[float, float, float]:
    """Return red, green and blue of an sRGB colour as linear light, 0 to 1."""
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (byte / 255 for byte in _bytes(colour))
    )
    return red, green, blue


def _bytes(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
