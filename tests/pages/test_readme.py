"""What the README says is there: its two commands, its targets, its links.  `.ci/readme.py` runs its examples."""

import re
import tomllib
from pathlib import Path

import pytest

from qfunc import targets

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_two_commands():
    assert '    pip install -c constraints.txt -e ".[examples]" && python examples/quickstart.py\n' in README
    assert '    pip install -c constraints.txt -e ".[test]" && pytest\n' in README


def test_twenty_lines_are_twenty():
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)

    assert 15 <= sum(bool(line.strip()) for line in block.splitlines()) <= 20


def test_what_is_proven_is_said_of_targets_that_exist():
    """All targets are in docs/target_table.md, which test_targets_page.py reads."""
    rows = set(re.findall(r"^\| `targets\.(\w+)`", README, re.MULTILINE))

    assert rows <= set(targets.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()) if "://" not in link]

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_everything_installed_is_pinned():
    """Each requirement, of the library and of every extra, has one exact version in constraints.txt."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pinned = dict(line.split("==") for line in lines)
    needed = PROJECT["dependencies"] + [r for extra in PROJECT["optional-dependencies"].values() for r in extra]
    names = {normal(re.match(r"[\w.-]+", requirement).group()) for requirement in needed}

    assert names <= {normal(name) for name in pinned}
    assert len(lines) == len(pinned)


def test_the_test_extra_holds_what_examples_and_testing_need():
    extras = {k: {normal(re.match(r"[\w.-]+", r).group()) for r in v} for k, v in PROJECT["optional-dependencies"].items()}

    assert extras["examples"] | extras["testing"] <= extras["test"]


def normal(name: str) -> str:
    """The name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_number_of_targets():
    for page in ("README.md", "docs/targets.md"):
        assert f"{len(targets.__all__)} targets for 22 toolchains" in (ROOT / page).read_text()
