"""The pictures of a report that docs/report.md shows, taken in a browser.

    python docs/pictures.py report.html [--out docs/images]

Needs playwright and Chromium. A picture per section of the page, light; the first one also dark, and as a phone shows it.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
SECTIONS = {
    "section:has(.explorer)": "curves",
    "section[id$=sweep]": "settings",
    "section[id$=training]": "training",
    "section[id$=spectra]": "spectra",
    "#runs": "runs",
    "#configurations": "configurations",
    "#again": "again",
}


def shoot(page: Page, selector: str | None, path: Path) -> None:
    """In at most 256 colours, which is all that figures have: a fifth of the bytes."""
    taken = page.locator(selector).first.screenshot() if selector else page.screenshot()
    with Image.open(io.BytesIO(taken)) as image:
        image.convert("RGB").quantize(256).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images")
    given = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=FLAGS)
        page = chromium.new_page(viewport={"width": 1000, "height": 1080}, device_scale_factor=1.5)
        page.goto(given.page.resolve().as_uri())
        shoot(page, None, given.out / "report-page.png")
        for selector, name in SECTIONS.items():
            if page.locator(selector).count():
                shoot(page, selector, given.out / f"report-{name}.png")
        page.evaluate("scrollTo(0, 0)")
        page.click("#theme")
        shoot(page, None, given.out / "report-dark.png")
        phone = chromium.new_page(viewport={"width": 375, "height": 812}, device_scale_factor=2)
        phone.goto(given.page.resolve().as_uri())
        phone.locator(".explorer").first.scroll_into_view_if_needed()
        phone.evaluate("document.querySelector('.explorer').scrollIntoView()")
        shoot(phone, None, given.out / "report-phone.png")
        chromium.close()


if __name__ == "__main__":
    main()
