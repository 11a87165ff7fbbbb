"""Print the bill of materials of a package, as CycloneDX: its Python packages, hashes of wheels.

    sbom.py SITE WHEELS

SITE is the folder into which the wheels of the folder WHEELS were unpacked.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def component(found: Distribution, wheel: Path) -> dict[str, object]:
    name = normal(found.metadata["Name"])
    licence = found.metadata.json.get("license_expression")
    return {
        "type": "application" if name == "probedeck" else "library",
        "bom-ref": name,
        "name": name,
        "version": found.version,
        "purl": f"pkg:pypi/{name}@{found.version}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
        **({"licenses": [{"expression": licence}]} if licence else {}),
    }


def main(site: str, wheels: str) -> None:
    files = {normal(path.name.partition("-")[0]): path for path in Path(wheels).glob("*.whl")}
    found = sorted(
        (
            component(each, files[normal(each.metadata["Name"])])
            for each in distributions(path=[site])
        ),
        key=lambda each: str(each["name"]),
    )
    own = next(each for each in found if each["type"] == "application")
    found.remove(own)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": found,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
