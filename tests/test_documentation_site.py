"""The documentation site that `make docs` builds: complete, without dead links, and independent of the network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import dayfly
import dayfly.frames
import pytest
from filelock import FileLock
from harness.programs import ROOT
from sphinx.util.inventory import InventoryFile

# Building the site takes half a minute on an idle machine.
pytestmark = pytest.mark.timeout(400)

BINDINGS = ROOT / "bindings"


def built(site: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Builds the site of a checkout into a directory."""
    return subprocess.run(
        [root / "scripts" / "docs", site],
        env={**os.environ, "DAYFLY_DOCS_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, one for all processes of the test run."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    site = shared / "documentation-site"
    with FileLock(shared / "documentation-site.lock"):
        if not (site / "index.html").exists():
            build = built(site)
            assert build.returncode == 0, build.stderr
    return site


@pytest.fixture(scope="session")
def objects(site: Path) -> set[str]:
    """The documented objects as `DOMAIN:NAME`."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    return {f"{kind.partition(':')[0]}:{name}" for kind, names in inventory.items() for name in names}


def headings(page: Path) -> set[str]:
    """Returns the texts of the headings of a page."""
    found = re.findall(r"<h[1-6][^>]*>(.*?)<a class=\"headerlink\"", page.read_text(), re.DOTALL)
    return {re.sub(r"<[^>]+>", "", text).strip() for text in found}


def test_every_public_python_name_is_on_the_site(objects: set[str]) -> None:
    public = [path.stem for path in (BINDINGS / "python/python/dayfly").glob("[!_]*.py")]
    wanted = {f"py:dayfly.{name}" for name in [*dayfly.__all__, *public] if not name.startswith("_")}
    # Their names are those of other packages.
    wanted -= {"py:dayfly.frames", "py:dayfly.MPI"}
    wanted |= {f"py:dayfly_frames.{name}" for name in dayfly.frames.__all__}
    assert len(wanted) > 40
    assert wanted <= objects, sorted(wanted - objects)


def test_every_client_method_is_on_the_site(objects: set[str]) -> None:
    wanted = {f"py:dayfly.Client.{name}" for name in dir(dayfly.Client) if not name.startswith("_")}
    assert wanted <= objects, sorted(wanted - objects)


def test_every_c_declaration_is_on_the_site(objects: set[str]) -> None:
    headers = "".join(path.read_text() for path in (BINDINGS / "c/include").glob("*.h"))
    functions = set(re.findall(r"^[a-z].*?\b(dfly_\w+)\(", headers, re.MULTILINE))
    macros = set(re.findall(r"^#define (DFLY_\w+) \d", headers, re.MULTILINE))
    structs = set(re.findall(r"^typedef struct (dfly_\w+)", headers, re.MULTILINE))
    assert len(functions) > 100
    wanted = {f"c:{name}" for name in functions | macros | structs}
    assert wanted <= objects, sorted(wanted - objects)


def test_every_cxx_class_is_on_the_site(site: Path) -> None:
    detail = re.compile(r"^namespace detail \{.*?^\} +// namespace detail", re.DOTALL | re.MULTILINE)
    public = "".join(detail.sub("", path.read_text()) for path in (BINDINGS / "cxx/include").rglob("*.hpp"))
    wanted = set(re.findall(r"^(?:class|struct) (\w+) .*\{$", public, re.MULTILINE))
    assert {"invoker", "group", "channel"} <= wanted
    assert wanted <= headings(site / "docs/reference/cxx.html")


def test_every_command_is_on_the_site(site: Path) -> None:
    wanted = set(re.findall(r"^## (dayfly.*)$", (ROOT / "docs/reference/cli.md").read_text(), re.MULTILINE))
    assert len(wanted) > 50
    assert wanted <= headings(site / "docs/reference/cli.html")


def test_every_request_and_error_is_on_the_site(site: Path) -> None:
    api = json.loads((ROOT / "docs/reference/openapi.json").read_text())
    requests = {f"{method.upper()} {path}" for path, methods in api["paths"].items() for method in methods}
    shown = headings(site / "docs/reference/rest.html")
    assert requests | set(api["components"]["schemas"]) <= shown
    errors = {text.partition(" ")[2] for text in headings(site / "docs/errors.html")}
    assert set(api["components"]["schemas"]["Code"]["enum"]) <= errors


def test_every_document_is_on_the_site(site: Path) -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    pages = [path.relative_to(ROOT).with_suffix(".html") for path in documents]
    assert [page for page in pages if not (site / page).exists()] == []


#: An element that leads to another address or loads it.
LINK = re.compile(r"<(?:a|img|script|link|object|iframe)\b[^>]*?\b(?:href|src|data)=\"([^\"]*)\"")
LOADED = re.compile(r"<(?:img|script|link|object|iframe)\b[^>]*\"((?:https?:)?//[^\"]*)")
LOADED_BY_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]*)")


def dead_links(site: Path) -> Iterator[str]:
    """Yields the links within a site that lead to no file or to no anchor."""
    pages = {page: page.read_text() for page in site.rglob("*.html")}
    anchors = {page: set(re.findall(r"\bid=\"([^\"]+)\"", text)) for page, text in pages.items()}
    for page, text in pages.items():
        for link in set(LINK.findall(text)):
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            has_anchor = not address.fragment or unquote(address.fragment) in anchors.get(target, ())
            if not target.exists() or not has_anchor:
                yield f"{page.relative_to(site)}: {link}"


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    assert list(dead_links(site.resolve())) == []


def test_site_loads_nothing_from_the_network(site: Path) -> None:
    loaded = [url for page in site.rglob("*.html") for url in LOADED.findall(page.read_text())]
    loaded += [url for style in site.rglob("*.css") for url in LOADED_BY_STYLE.findall(style.read_text())]
    assert loaded == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with two documents."""
    root = tmp_path / "checkout"
    for name in ("docs/_ext", "docs/_static", "bindings/python/python/dayfly"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("bin", "__pycache__", "*.so"))
    (root / "scripts").mkdir()
    for name in ("docs/conf.py", "scripts/docs", "scripts/environment.sh", "Cargo.toml"):
        shutil.copy(ROOT / name, root / name)
    (root / "README.md").write_text("# Start\n\n## First steps\n\nSee [the pages](docs/README.md).\n")
    (root / "docs/README.md").write_text("# Pages\n\nGuides:\n\n- [Start](../README.md#first-steps)\n")
    return root


def test_checkout_without_faults_is_built(checkout: Path) -> None:
    build = built(checkout / "site", checkout)
    assert build.returncode == 0, build.stderr
    assert "First steps" in (checkout / "site/index.html").read_text()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("[gone](docs/gone.md)", "docs/gone.md"),
        ("[gone](docs/README.md#gone)", "gone"),
        ("[gone](#gone)", "gone"),
        ("![gone](docs/gone.svg)", "docs/gone.svg"),
    ],
)
def test_dead_link_or_picture_fails_the_build(checkout: Path, fault: str, message: str) -> None:
    with (checkout / "README.md").open("a") as page:
        page.write(f"\n{fault}\n")
    build = built(checkout / "site", checkout)
    assert build.returncode != 0
    assert message in build.stderr


def test_document_missing_in_the_contents_fails_the_build(checkout: Path) -> None:
    (checkout / "docs/extra.md").write_text("# Extra\n")
    build = built(checkout / "site", checkout)
    assert build.returncode != 0
    assert "docs/extra.md" in build.stderr


def test_unknown_name_in_a_reference_fails_the_build(checkout: Path) -> None:
    with (checkout / "README.md").open("a") as page:
        page.write("\n```{eval-rst}\n:py:class:`dayfly.Gone`\n```\n")
    build = built(checkout / "site", checkout)
    assert build.returncode != 0
    assert "dayfly.Gone" in build.stderr
