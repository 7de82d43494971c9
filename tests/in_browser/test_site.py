"""The site in a browser, from ``file://``: it works, fetches nothing, and fits a phone and a desk.

Needs the extra ``[docs]``, Playwright for Python and a Chromium (``CHROMIUM`` names one);
`.ci/site` brings the first two. With ``CELLGEN_SCREENSHOTS=DIR`` pictures of some pages are kept.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PHONE, DESK = 390, 1440
GALLERY = "gallery/index.html"
WIDER = """() => {
    const width = document.documentElement.clientWidth;
    const within = (e) => {
        for (let p = e.parentElement; p; p = p.parentElement)
            if (!["visible"].includes(getComputedStyle(p).overflowX)) return true;
        return false;
    };
    const wide = [...document.querySelectorAll("body *")].filter((e) => {
        const box = e.getBoundingClientRect(), isFixed = getComputedStyle(e).position === "fixed";
        return box.width && box.right > width + 1 && !isFixed && !within(e);
    });
    const found = wide.slice(0, 3).map((e) => e.outerHTML.slice(0, 80));
    return document.documentElement.scrollWidth > width ? ["the page", ...found] : found;
}"""
"""What is wider than the page and does not scroll by itself."""

CORNER = """async (shot) => {
    const image = new Image();
    image.src = "data:image/png;base64," + shot;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
    canvas.drawImage(image, 0, 0);
    return [...canvas.getImageData(14, 14, 1, 1).data].slice(0, 3);
}"""
"""The colour that a picture of the screen has near its upper left corner."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "docs.build", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def watched(browser: Any, width: int, scheme: str) -> tuple[Any, list[str]]:
    """A tab, and what goes wrong in it: errors that are logged, and whatever is fetched."""
    wrong: list[str] = []
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab = context.new_page()
    tab.on("console", lambda m: wrong.append(m.text) if m.type in {"error", "warning"} else None)
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("requestfailed", lambda request: wrong.append(f"not found: {request.url}"))
    tab.on("request", lambda r: wrong.append(r.url) if r.url.startswith(("http", "ws")) else None)
    return tab, wrong


@contextmanager
def opened(browser: Any, site: Path, page: str, width: int = DESK, scheme: str = "light") -> Any:
    """Open a page; at its end no error has been logged and nothing fetched."""
    tab, wrong = watched(browser, width, scheme)
    path, _, choice = page.partition("#")
    tab.goto(f"{(site / path).as_uri()}{'#' + choice if choice else ''}")
    yield tab
    tab.context.close()
    assert wrong == [], page


def shown(tab: Any) -> list[str]:
    return tab.eval_on_selector_all(".cx-card", "cards => cards.map(c => c.dataset.cell)")


def test_every_page_loads_without_errors_and_fits_a_phone_and_a_desk(site, browser):
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    pages = [page for page in pages if page != "404.html"]
    assert len(pages) > 100
    tab, wrong = watched(browser, PHONE, "dark")
    found = {}
    for page in pages:
        tab.goto((site / page).as_uri())
        wide = tab.evaluate(WIDER)
        tab.set_viewport_size({"width": DESK, "height": 900})
        wide += tab.evaluate(WIDER)
        tab.set_viewport_size({"width": PHONE, "height": 900})
        unset = tab.locator(".katex-error").count()
        if wide or unset or wrong:
            found[page] = (wide, unset, list(wrong))
            wrong.clear()
    tab.context.close()
    assert found == {}


def test_the_search_of_the_site_works_without_a_server(site, browser):
    with opened(browser, site, "index.html") as tab:
        tab.fill(".md-search__input", "zoneout")
        found = tab.locator(".md-search-result__item a[href*='how-to/regularisers.html']")
        found.first.wait_for(state="attached", timeout=20_000)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("spiking", {"lif", "alif", "izhikevich"}),
        *((name, {name}) for name in ("gru", "lstm", "mamba", "elman", "lstm_peephole")),
    ],
)
def test_the_search_lists_cells_of_that_name_or_family_first(site, browser, words, first):
    assert set(found_first(browser, site, words)[: len(first)]) == first


@pytest.mark.parametrize("words", ["no compiler", "without a compiler"])
def test_the_search_for_what_many_ask_finds_its_page_first(site, browser, words):
    assert found_first(browser, site, words)[0] == "wheels"


def found_first(browser: Any, site: Path, words: str) -> list[str]:
    """The pages that the search finds for words, as it lists them."""
    with opened(browser, site, "index.html") as tab:
        tab.focus(".md-search__input")
        tab.locator(".md-search__input").press_sequentially(words)
        links = tab.locator(".md-search-result__item > a:first-child")
        links.first.wait_for(state="attached", timeout=20_000)
        names = links.evaluate_all("all => all.map(a => a.pathname.split('/').at(-1))")
        return [name.removesuffix(".html") for name in names]


def test_a_tag_leads_to_the_cells_that_have_it(site, browser):
    with opened(browser, site, "gallery/lif.html") as tab:
        assert tab.locator(".md-tags").inner_text().split("\n") == ["recurrence dense", "spiking"]
        tab.click(".md-tags a:text-is('spiking')")
        tab.locator("h2 .md-tag").first.wait_for()
        heads = tab.locator("h2 .md-tag").all_inner_texts()
        assert "spiking" in heads
        assert len(heads) < 20
        listed = tab.locator("h2:has(.md-tag:text-is('spiking')) + ul").inner_text()
        assert listed.split() == ["alif", "izhikevich", "lif"]


def test_search_finds(site, browser):
    with opened(browser, site, GALLERY) as tab:
        whole = shown(tab)
        assert len(whole) >= 63
        tab.fill("#cx-search", "xLSTM matrix")
        assert shown(tab) == ["mlstm", "mlstm_sigmoid"]
        assert tab.inner_text("#cx-count").startswith(f"2 of {len(whole)} cells")
        tab.fill("#cx-search", "no such cell")
        assert shown(tab) == []
        assert "No cell fits" in tab.inner_text("#cx-grid")
        tab.click("#cx-filters button")
        tab.wait_for_selector(".cx-card")
        assert shown(tab) == whole


@pytest.mark.parametrize(
    ("choices", "some", "none"),
    [
        ({"recurrence": "diagonal and linear"}, "min_gru", "lstm"),
        ({"recurrence": "block-diagonal"}, "slstm_heads", "slstm"),
        ({"levels": "2"}, "gru_reset_before", "gru"),
        ({"states": "4"}, "slstm", "lstm"),
        ({"from": "2024"}, "mlstm", "lstm"),
        ({"to": "1997"}, "lstm", "mlstm"),
        ({"heads": "yes"}, "delta_net", "mamba"),
        ({"heads": "no"}, "mamba", "delta_net"),
        ({"heads": "yes", "from": "2024"}, "mlstm", "retnet"),
    ],
)
def test_filters_filter(site, browser, choices, some, none):
    with opened(browser, site, GALLERY) as tab:
        for name, value in choices.items():
            tab.select_option(f"#cx-{name}", value)
        found = shown(tab)
        assert some in found
        assert none not in found


def test_cards_are_put_in_order(site, browser):
    with opened(browser, site, GALLERY) as tab:
        tab.select_option("#cx-order", "name")
        assert shown(tab) == sorted(shown(tab))
        tab.select_option("#cx-order", "year")
        assert shown(tab)[0] == "elman"


def test_a_card_shows_what_is_known_and_says_what_is_not_measured(site, browser):
    with opened(browser, site, GALLERY) as tab:
        lstm = tab.locator('.cx-card[data-cell="lstm"]')
        text = lstm.inner_text()
        for part in ("1997", "1 level", "2 states", "394,240 numbers", "4,096 bytes", " ms, "):
            assert part in text
        for name in tab.evaluate("CELLGEN.cells.filter(c => !c.speed.length).map(c => c.name)"):
            assert "not measured" in tab.inner_text(f'.cx-card[data-cell="{name}"]')
        picture = lstm.locator("img")
        picture.scroll_into_view_if_needed()
        tab.wait_for_function("i => i.complete && i.naturalWidth > 0", arg=picture.element_handle())
        lstm.locator(".cx-thumb").click()
        assert tab.locator("#cx-picture").is_visible()
        tab.keyboard.press("Escape")
        assert not tab.locator("#cx-picture").is_visible()


def test_the_equations_of_every_card_are_typeset(site, browser):
    with opened(browser, site, GALLERY) as tab:
        count = tab.locator(".cx-card").count()
        tab.eval_on_selector_all(
            ".cx-card .cx-row button:first-child", "buttons => buttons.forEach(b => b.click())"
        )
        assert tab.locator(".cx-card .katex-display").count() == count
        assert tab.locator(".katex-error").count() == 0
        assert tab.evaluate(
            "document.fonts.ready.then(f => [...f].some(x => x.status == 'loaded'))"
        )


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_two_cells_stand_side_by_side(site, browser, width):
    with opened(browser, site, GALLERY, width) as tab:
        tab.click('.cx-pick[data-cell="gru"]')
        assert "Compare gru with" in tab.inner_text("#cx-bar")
        tab.click('.cx-pick[data-cell="lstm"]')
        text = tab.inner_text("#cx-compare")
        for part in (
            "393,216 (4·H² + 4·H·I)",
            "884,736",
            "4,096 bytes a step and row (i, f, g, o)",
            "of the floor",
        ):
            assert part in text
        names = tab.locator("#cx-compare .cx-name")
        left, right = (names.nth(place).bounding_box() for place in (0, 1))
        assert left["y"] == right["y"]
        assert left["x"] + left["width"] <= right["x"]
        assert tab.locator("#cx-compare .katex-display").count() == 2
        assert "runs are not compared" in text
        assert tab.evaluate(WIDER) == []
        tab.reload()
        assert tab.locator("#cx-compare").is_visible()
        tab.click("#cx-compare .cx-head button")
        assert not tab.locator("#cx-compare").is_visible()


def test_times_that_are_compared_are_of_one_run(site, browser):
    with opened(browser, site, f"{GALLERY}#compare=lstm,gru") as tab:
        times = tab.evaluate(
            """() => {
                const [a, b] = ["lstm", "gru"].map(n => CELLGEN.cells.find(c => c.name === n));
                const runs = new Set(a.speed.map(e => e.run));
                const of = (c) => c.speed.filter(e => e.shape === CELLGEN.shape
                    && e.mode === "forward" && runs.has(e.run)).at(-1).ms;
                return [of(a), of(b)].map(String);
            }"""
        )
        labels = tab.locator("#cx-compare .cx-label").all_inner_texts()
        row = labels.index("forward, 100,32,128,256")
        values = tab.locator("#cx-compare .cx-value").all_inner_texts()[2 * row : 2 * row + 2]
        assert [value.split(" ms")[0] for value in values] == times


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cards_and_their_equations_fit(site, browser, width, scheme):
    with opened(browser, site, GALLERY, width, scheme) as tab:
        tab.eval_on_selector_all(
            ".cx-card .cx-row button:first-child", "buttons => buttons.forEach(b => b.click())"
        )
        assert tab.evaluate(WIDER) == []
        dark = (
            tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        )
        assert dark == (scheme == "dark")


def test_pictures_change_with_the_scheme(site, browser):
    """Read off the screen, in a corner of a picture: ink on paper, or light on a dark ground."""
    found = {}
    for scheme in ("light", "dark"):
        with opened(browser, site, GALLERY, DESK, scheme) as tab:
            card = tab.locator(".cx-thumb").first
            card.scroll_into_view_if_needed()
            tab.wait_for_function("[...document.images].slice(0, 1).every(i => i.complete)")
            shot = base64.b64encode(card.screenshot()).decode()
            found[scheme] = tab.evaluate(CORNER, shot)
    assert min(found["light"]) > 240
    assert max(found["dark"]) < 60


def test_pictures_of_pages_are_kept_where_asked(site, browser):
    folder = os.environ.get("CELLGEN_SCREENSHOTS")
    if not folder:
        pytest.skip("CELLGEN_SCREENSHOTS names no folder")
    pages = (GALLERY, f"{GALLERY}#compare=lstm,gru", "index.html", "explanation/gate-to-c.html")
    for page in pages:
        for width in (PHONE, DESK):
            for scheme in ("light", "dark"):
                with opened(browser, site, page, width, scheme) as tab:
                    name = page.replace("/", "-").replace("#", "-").replace(".html", "")
                    tab.wait_for_timeout(500)
                    tab.screenshot(path=f"{folder}/{name}-{width}-{scheme}.png")
