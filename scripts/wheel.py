#!/usr/bin/env python3
"""Makes the wheel of the Python package: `wheel.py LIBRARY DIRECTORY [GLIBC]`.

A wheel is an archive of the package, of the library that cargo has built, and of three texts about
them. maturin would have cargo build the one package by itself, whose dependencies then have fewer
features: DataFusion would be compiled a second time.

The library is checked as auditwheel does: it may need the libraries that every Linux has, nothing of
a glibc newer than GLIBC (`2.28`), where that is given, and else the interpreter alone. The name of the
wheel says which glibc it needs.
"""

import base64
import hashlib
import platform
import sys
import tomllib
import zipfile
from pathlib import Path

from elf import Library

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "millstream"
# The oldest CPython whose stable interface the library uses: pyo3's feature `abi3-py310`.
PYTHON = "cp310"

# `pip install millstream[polars]`: packages that the library uses where they are installed. The versions
# are the oldest ones that give and take its rows: older ones have no Arrow C stream, or have no frame
# of pandas for the text that the engine gives.
EXTRAS = {
    "pyarrow": ["pyarrow>=16"],
    "polars": ["polars>=1.3"],
    "pandas": ["pandas>=2.2", "pyarrow>=16"],
    "jupyter": ["ipykernel"],
}

# What a library of a wheel for manylinux may need (PEP 600).
LIBRARIES = {
    *("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1"),
    *("libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
}


def glibc(library: Library, newest: int | None) -> int:
    """The minor version of the oldest glibc that has all symbols of the library."""
    foreign = sorted(set(library.needed) - LIBRARIES)
    if foreign or library.paths:
        sys.exit(f"the library needs {foreign} and looks in {library.paths}: not every Linux has them")
    # Those of the interpreter have no version. A symbol that the glibc for which the library was linked does
    # not have would be another such one, and missed only where it is called.
    unknown = [name for name in library.unversioned if not name.startswith(("Py", "_Py"))]
    if unknown:
        sys.exit(f"the library needs symbols that nobody has: {', '.join(sorted(unknown))}")
    versions = {}
    for version, symbols in library.versions.items():
        family, _, number = version.partition("_")
        if family == "GLIBC" and number.startswith("2."):
            minor = int(number.split(".")[1])
            versions.setdefault(minor, []).extend(symbols)
    if newest is not None and any(minor > newest for minor in versions):
        newer = [symbol for minor, all_ in versions.items() if minor > newest for symbol in all_]
        sys.exit(f"the library needs a glibc newer than 2.{newest}: {', '.join(sorted(newer))}")
    return max(versions, default=17)


def entry(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def extras() -> str:
    """The lines of METADATA for the packages that may be installed beside."""
    lines = []
    for extra, packages in EXTRAS.items():
        lines.append(f"Provides-Extra: {extra}\n")
        lines += [f"Requires-Dist: {package}; extra == '{extra}'\n" for package in packages]
    return "".join(lines)


def main() -> None:
    library, directory = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
    newest = int(sys.argv[3].removeprefix("2.")) if len(sys.argv) > 3 else None
    needs = glibc(Library(Path(sys.argv[1])), newest)
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    version = manifest["version"]
    tag = f"{PYTHON}-abi3-manylinux_2_{needs}_{platform.machine()}"
    information = f"millstream-{version}.dist-info"
    readme = (ROOT / "docs" / "python.md").read_text()
    files = {f"millstream/{path.name}": path.read_bytes() for path in sorted(PACKAGE.glob("*.py*"))}
    files["millstream/py.typed"] = b""
    files["millstream/_millstream.abi3.so"] = library
    files[f"{information}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    files[f"{information}/METADATA"] = (
        "Metadata-Version: 2.4\n"
        "Name: millstream\n"
        f"Version: {version}\n"
        "Summary: Streaming SQL with event time, in the process.\n"
        f"License-Expression: {manifest['license']}\n"
        "License-File: LICENSE\n"
        "Requires-Python: >=3.10\n"
        f"{extras()}"
        "Description-Content-Type: text/markdown\n"
        f"\n{readme}"
    ).encode()
    files[f"{information}/WHEEL"] = (
        "Wheel-Version: 1.0\n"
        f"Generator: millstream {version}\n"
        "Root-Is-Purelib: false\n"
        f"Tag: {tag}\n"
    ).encode()
    record = "".join(entry(name, content) for name, content in files.items())
    files[f"{information}/RECORD"] = f"{record}{information}/RECORD,,\n".encode()

    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"millstream-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            # The same bytes whenever it is made.
            about = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            about.compress_type = zipfile.ZIP_DEFLATED
            about.external_attr = 0o644 << 16
            archive.writestr(about, content)
    print(f"{wheel}: {wheel.stat().st_size / (1 << 20):.1f} MiB")


main()
