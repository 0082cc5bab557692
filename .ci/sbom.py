"""Writes the bill of materials of the gateway's program in CycloneDX's form (JSON, 1.5): every crate that is linked into
it or builds it, with version, licence and the checksum of Cargo.lock. Tests' and loadtest's crates are not in it.

The one argument is where to. The same sources give the same bytes."""

import hashlib
import json
import pathlib
import subprocess
import sys
import tomllib
import uuid

TARGET = "x86_64-unknown-linux-musl"


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def shipped(resolve, root):
    """Ids of what the root needs to be built and run, each with the ids of what it needs itself."""
    nodes = {node["id"]: node for node in resolve["nodes"]}
    needed, waiting = {}, [root]
    while waiting:
        current = waiting.pop()
        if current in needed:
            continue
        kept = [
            dep["pkg"]
            for dep in nodes[current]["deps"]
            if any(kind["kind"] in (None, "build") for kind in dep["dep_kinds"])
        ]
        needed[current] = sorted(kept)
        waiting.extend(kept)
    return needed


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, kind, checksums):
    found = {
        "type": kind,
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }
    if package.get("description"):
        found["description"] = " ".join(package["description"].split())
    if package.get("license"):
        # Some crates still write the old "MIT/Apache-2.0".
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("repository"):
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


def main():
    known = metadata()
    packages = {package["id"]: package for package in known["packages"]}
    root = next(i for i, package in packages.items() if package["name"] == "vectorgate" and i in known["workspace_members"])
    needed = shipped(known["resolve"], root)
    lock = pathlib.Path("Cargo.lock").read_bytes()
    checksums = {
        (entry["name"], entry["version"]): entry["checksum"]
        for entry in tomllib.loads(lock.decode())["package"]
        if "checksum" in entry
    }
    others = sorted((packages[i] for i in needed if i != root), key=reference)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=hashlib.sha256(lock).digest()[:16], version=4)}",
        "version": 1,
        "metadata": {"component": component(packages[root], "application", checksums)},
        "components": [component(package, "library", checksums) for package in others],
        "dependencies": [
            {"ref": reference(packages[i]), "dependsOn": [reference(packages[dep]) for dep in deps]}
            for i, deps in sorted(needed.items(), key=lambda entry: reference(packages[entry[0]]))
        ],
    }
    unlicensed = [package["name"] for package in others if not package.get("license")]
    if unlicensed:
        sys.exit(f"these crates state no licence: {', '.join(unlicensed)}")
    out = pathlib.Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{out}: {len(others)} crates")


main()
