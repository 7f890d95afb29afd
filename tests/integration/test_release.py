"""Releases: versions agree, and the wheels and sdists of all distributions work."""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from dingsdk.plugins import TEMPLATES
from tools.release_check import PROJECTS, ROOT, CheckFailedError, build, new_environment, run, smoke

WORKFLOWS = ROOT / ".github" / "workflows"


def described(project: Path) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    return found


def test_all_distributions_and_the_citation_have_one_version() -> None:
    versions = {str(described(project)["version"]) for project in PROJECTS}
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert versions == {cited["version"]}
    assert len(PROJECTS) > 2


def test_changelog_has_unreleased_changes_first_and_known_headings() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)

    assert versions[0] == "[Unreleased]"
    for version in versions[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", version)
    headings = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_every_python_of_the_classifiers_is_tested_by_a_workflow() -> None:
    workflow = yaml.safe_load((WORKFLOWS / "test.yml").read_text(encoding="utf-8"))
    tested = set(workflow["jobs"]["commands"]["strategy"]["matrix"]["python"])
    declared = re.findall(r"Python :: (3\.\d+)", str(described(ROOT)["classifiers"]))

    assert set(declared) <= tested


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("dependabot", ".github/dependabot.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_for_github_fit_their_schemas(schema: str, pattern: str) -> None:
    files = sorted(ROOT.glob(pattern))
    assert files
    run([bin_of("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *files])


@pytest.mark.slow
def test_workflows_have_no_known_weakness(tmp_path: Path) -> None:
    run([bin_of("zizmor"), "--offline", "--no-progress", ROOT / ".github"])
    weak = tmp_path / "weak.yml"
    text = (WORKFLOWS / "test.yml").read_text(encoding="utf-8")
    weak.write_text(re.sub(r"@[0-9a-f]{40} # \S+", "@v5", text), encoding="utf-8")

    with pytest.raises(CheckFailedError, match="unpinned-uses"):
        run([bin_of("zizmor"), "--offline", "--no-progress", weak])


def bin_of(program: str) -> Path:
    import sys

    return Path(sys.executable).parent / program


@pytest.mark.slow
def test_wheels_train_in_a_new_environment_and_sdists_build_the_same_wheels(
    tmp_path: Path,
) -> None:
    wheels = build(tmp_path / "dist")
    assert len(wheels) == len(PROJECTS)
    python = new_environment(tmp_path / "venv", wheels)
    smoke(python, tmp_path)
    for kind in TEMPLATES:
        run([python, "-m", "dingsdk", "new", "plugin", kind, f"a-{kind}"], cwd=tmp_path)

    sources = []
    for archive in sorted((tmp_path / "dist").glob("*.tar.gz")):
        with tarfile.open(archive) as opened:
            opened.extractall(tmp_path / "sources", filter="data")
        sources.append(tmp_path / "sources" / archive.name.removesuffix(".tar.gz"))
    again = build(tmp_path / "again", sources)
    assert [contents(wheel) for wheel in again] == [contents(wheel) for wheel in wheels]


def contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as opened:
        return {each.filename: each.CRC for each in opened.infolist()}
