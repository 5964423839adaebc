"""The pictures of README and docs, and the run that the README shows.

`python docs/pictures.py` draws docs/decomposition.svg. `python docs/pictures.py FOLDER` writes two
sets of pictures into an empty folder, runs the commands of the README on them, keeps what they
print in docs/example.txt, and takes docs/report.png, the first screen of the report, with a
headless Chromium.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from PIL import Image

from attittud import decompose

DOCS = Path(__file__).parent
# Mid-tones and no background: readable on a light page and on a dark one.
GREY, PURPLE, GREEN, RED, BLUE = "#757d85", "#a06cd5", "#2e9e5b", "#e0524d", "#3b8edb"
ORIGIN = torch.tensor([230.0, 260.0])
# Where v1, v2 and the normal of their span point on paper.
AXES = torch.tensor([[110.0, 20.0], [72.0, -55.0], [0.0, -140.0]])
PRIMARY = torch.tensor([1.08, 0.85, 0.0])
AUXILIARY = torch.tensor([-1.0, 1.0, 1.0])
WIDTH, HEIGHT = 1200, 800  # of a screenshot
RUN = "runs/attittud/portfolio/seed-0"
COMMANDS = (
    "init image --primary pictures/ --auxiliary other_pictures/",
    "train attittud.yaml 'portfolio.uses=[alone, stacked, translated]'",
    f"predict {RUN} new_pictures/",
)


def at(point: torch.Tensor) -> str:
    """Return the place of a point in space on paper."""
    x, y = (ORIGIN + point.float() @ AXES).round().int().tolist()
    return f"{x} {y}"


def path(*corners: tuple[float, float, float], close: str = "") -> str:
    return "M" + "L".join(at(torch.tensor(corner)) for corner in corners) + close


def word(x: float, y: float, text: str, color: str) -> str:
    return f'    <text x="{x:g}" y="{y:g}" fill="{color}">{text}</text>'


def arrow(end: torch.Tensor, color: str) -> str:
    return f'    <path d="M{at(torch.zeros(3))}L{at(end)}" stroke="{color}" marker-end="url(#a{color[1:]})"/>'


def decomposition() -> str:
    """Return the picture of one decomposition, which the library computes."""
    parts = decompose(AUXILIARY, PRIMARY, basis=torch.eye(3)[:2])
    drawn = {
        GREY: AUXILIARY,
        PURPLE: PRIMARY,
        GREEN: parts.helpful,
        RED: parts.harmful,
        BLUE: parts.neutral,
    }
    shape = 'viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6" markerHeight="6" orient="auto"'
    heads = []
    for color in drawn:
        head = f'<path d="M0 0L10 5L0 10z" fill="{color}"/>'
        heads.append(f'    <marker id="a{color[1:]}" {shape}>{head}</marker>')
    span = path((-1.54, -0.46, 0), (1.72, -0.46, 0), (1.72, 1.45, 0), (-1.54, 1.45, 0), close="z")
    lines = path((-1.55, 0, 0), (1.55, 0, 0)) + path((0, -0.46, 0), (0, 1.44, 0))
    harmful = (-1.0, 0.0, 0.0)
    inside = (-1.0, 1.0, 0.0)
    helpful = (0.0, 1.0, 0.0)
    box = path(harmful, inside, helpful) + path(inside, (-1, 1, 1), (0, 0, 1))
    weights = [
        ("η_neutral · neutral", BLUE),
        ("+ η_helpful · helpful", GREEN),
        ("+ η_harmful · harmful", RED),
        ("+ primary_weight · g_primary", PURPLE),
    ]
    terms = []
    for number, (text, color) in enumerate(weights):
        terms.append(word(500, 66 + 24 * number, text, color))
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 350" width="760" height="350" role="img"',
            '     font-family="Helvetica, Arial, sans-serif" font-size="15">',
            "  <title>An auxiliary gradient split into a helpful, a harmful and a neutral part</title>",
            "  <desc>In the span of the basis V, the harmful part points against the primary gradient along v1, the helpful part",
            "  with it along v2; the neutral part stands upright on the span.</desc>",
            "  <defs>",
            *heads,
            "  </defs>",
            f'  <path d="{span}" fill="{GREY}" fill-opacity="0.14" stroke="{GREY}" stroke-opacity="0.5"/>',
            f'  <path d="{lines}" stroke="{GREY}" stroke-dasharray="2 4"/>',
            f'  <path d="{box}" fill="none" stroke="{GREY}" stroke-dasharray="4 4"/>',
            "  <g>",
            word(352, 338, "span of V (here k = 2)", GREY),
            word(404, 297, "v₁", GREY),
            word(338, 180, "v₂", GREY),
            "  </g>",
            '  <g stroke-width="3" fill="none">',
            *(arrow(end, color) for color, end in drawn.items()),
            "  </g>",
            '  <g font-weight="bold">',
            word(416, 240, "g_primary", PURPLE),
            word(100, 40, "g_auxiliary", GREY),
            word(310, 212, "helpful", GREEN),
            word(60, 262, "harmful", RED),
            word(238, 128, "neutral", BLUE),
            word(500, 40, "update =", GREY),
            "  </g>",
            "  <g>",
            *terms,
            "  </g>",
            "</svg>\n",
        ]
    )


def screenshot(page: Path, target: Path) -> None:
    """Take the first screen of a page; twice as many pixels, so that it is sharp on all
    displays.
    """
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    browser = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    try:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 2, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.resolve().as_uri())
        browser.save_screenshot(str(target))
    finally:
        browser.quit()
    with Image.open(target) as picture:
        small = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(target, optimize=True)


def write_digits(folder: Path) -> None:
    """Write scikit-learn's digits as pictures: of each digit 10 as primary data, 100 as auxiliary
    data and 2 new ones. Every third auxiliary picture lies in the folder of the next digit.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    # Neighbours are by the same writers.
    order = np.random.default_rng(0).permutation(len(digits.images))
    images, labels = digits.images[order], digits.target[order]
    for digit in range(10):
        for number, pixels in enumerate(images[labels == digit][:112]):
            if number < 10:
                place = f"pictures/digit_{digit}"
            elif number < 110:
                wrong = number % 3 == 0
                place = f"other_pictures/digit_{(digit + wrong) % 10}"
            else:
                place = "new_pictures"
            target = folder / place / f"{digit}-{number}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 255 / 16).astype("uint8")).save(target)


def example(folder: Path) -> str:
    """Run the commands of the README in a folder and return what they print; lines of progress are
    left out.
    """
    write_digits(folder)
    printed = []
    for command in COMMANDS:
        words = [sys.executable, "-m", "attittud", *shlex.split(command)]
        done = subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
        printed.append(f"$ attittud {command}\n{done.stdout}")
    return "".join(f"{line.rstrip()}\n" for line in "\n".join(printed).splitlines())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        place = Path(sys.argv[1])
        (DOCS / "example.txt").write_text(example(place), encoding="utf-8")
        screenshot(place / RUN / "report.html", DOCS / "report.png")
    else:
        (DOCS / "decomposition.svg").write_text(decomposition(), encoding="utf-8")
