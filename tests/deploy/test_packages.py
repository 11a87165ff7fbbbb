"""Packages: the bill of materials and the spec are accepted by their own tools."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import jsonschema_rs

from tests.deploy.tools import DEPLOY, package, run


def wheel(folder: Path, name: str, version: str, more: str = "") -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(
            f"{name}-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{more}",
        )
    return path


def test_the_bill_of_materials_has_each_wheel_and_its_hash(tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    made = {
        "probedeck": wheel(wheels, "probedeck", "0.6.0"),
        "two-words": wheel(wheels, "Two_Words", "1.2", "License-Expression: MIT OR Apache-2.0\n"),
    }
    for path in made.values():
        zipfile.ZipFile(path).extractall(site)
    bill = json.loads(run(sys.executable, DEPLOY / "packages/sbom.py", site, wheels))

    folder = package("cyclonedx") / "schema/_res"
    schema = {
        each: json.loads((folder / f"{each}.SNAPSHOT.schema.json").read_text())
        for each in ("bom-1.6", "spdx", "jsf-0.82")
    }
    registry = jsonschema_rs.Registry(
        [(f"http://cyclonedx.org/schema/{n}.SNAPSHOT.schema.json", s) for n, s in schema.items()]
    )
    jsonschema_rs.validator_for(schema["bom-1.6"], registry=registry).validate(bill)
    found = {
        each["name"]: each["hashes"][0]["content"]
        for each in (bill["metadata"]["component"], *bill["components"])
    }
    assert found == {n: hashlib.sha256(path.read_bytes()).hexdigest() for n, path in made.items()}


def test_rpm_reads_the_spec(tmp_path: Path) -> None:
    for script in ("postinst", "prerm"):
        (tmp_path / script).write_text("true")
    given = {"_sourcedir": tmp_path, "stage": tmp_path, "version": "0.6.0", "python": "3.13"}
    defined = (part for name, value in given.items() for part in ("--define", f"{name} {value}"))
    text = run("rpmspec", "-P", *defined, DEPLOY / "packages/probedeck.spec")
    assert "Requires: /usr/bin/python3.13, libbpf.so.1()(64bit)" in text
    assert "%" not in text.partition("%description")[0], "an undefined macro"
