"""One look a scheme: colour, marker and line, the same in every figure, readable in grey."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb

Dashes = str | tuple[int, tuple[float, ...]]
LONG: Dashes = (0, (7, 1.5))
SPARSE: Dashes = (0, (4, 1, 1, 1, 1, 1))


@dataclass(frozen=True)
class Look:
    """Colour, marker and line of one scheme."""

    color: str
    marker: str | tuple[int, int, int]
    dashes: Dashes

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of `Axes.plot` for a line without markers."""
        return {"color": self.color, "linestyle": self.dashes}

    def point(self, *, filled: bool, size: float = 5.0) -> dict[str, Any]:
        """Arguments of `Axes.plot` for markers without a line."""
        return {
            "linestyle": "none",
            "marker": self.marker,
            "markersize": size,
            "color": self.color,
            "markerfacecolor": self.color if filled else "white",
            # A white rim keeps two seeds at one place apart.
            "markeredgecolor": "white" if filled else self.color,
            "markeredgewidth": 0.5 if filled else 1.1,
        }


# In grey two schemes with the same marker differ in lightness and dashes; the first five differ
# in all three.
LOOKS = {
    "post_norm": Look("#b3122b", "o", "-"),
    "pre_norm": Look("#1691a8", "s", "--"),
    "rezero": Look("#f0a500", "^", "-."),
    "b2t": Look("#b38ae0", "v", ":"),
    "deepnorm": Look("#1a2768", "D", LONG),
    "deepnorm_glm": Look("#7fa8e8", "D", "--"),
    "admin": Look("#2e7d32", "P", "-"),
    "ds_init": Look("#8a4b14", "X", "--"),
    "t_fixup": Look("#d6568f", "p", "-."),
    "sub_norm": Look("#56611a", "<", ":"),
    "normformer": Look("#4a1c6e", ">", LONG),
    "reordered": Look("#f08a6c", "o", "--"),
    "sandwich": Look("#0d4f52", "^", "-"),
    "peri_norm": Look("#a8c63a", "P", LONG),
    "norm_scaling": Look("#7a1f4f", "v", "-"),
    "layer_scale": Look("#10353f", "s", "-."),
    "mix_norm": Look("#d9b48a", "X", "-"),
    "keel": Look("#6f1010", "p", ":"),
    "complete_p": Look("#8fd0c0", ">", "-"),
    "dlcl": Look("#c9c9c9", "<", SPARSE),
}
# Stars and crosses of their own, so that a private scheme is never taken for a published one.
PRIVATE_COLORS = ("#000000", "#4d4d4d", "#7d5fff", "#c2185b", "#00796b", "#e65100", "#5d8aa8")
PRIVATE_MARKERS = ((3, 1, 0), (4, 1, 0), (5, 1, 0), (6, 1, 0), (8, 1, 0))
PRIVATE_DASHES: tuple[Dashes, ...] = ("-", "--", "-.", ":", LONG, SPARSE)


def look(scheme: str) -> Look:
    """The scheme's fixed look; a private scheme's follows from its name alone."""
    if scheme in LOOKS:
        return LOOKS[scheme]
    digest = hashlib.sha256(scheme.encode()).digest()
    return Look(
        PRIVATE_COLORS[digest[0] % len(PRIVATE_COLORS)],
        PRIVATE_MARKERS[digest[1] % len(PRIVATE_MARKERS)],
        PRIVATE_DASHES[digest[2] % len(PRIVATE_DASHES)],
    )


def lightness(color: str) -> float:
    """CIE L*, 0 black to 100 white: what a grey print keeps of a colour."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance
