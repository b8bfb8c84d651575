"""Build and run the image without a container engine, on Linux, as root: python3 deploy/rehearse.py

Each stage of the Dockerfile is a folder that becomes the root directory. System folders are those of this machine,
read-only; COPY and RUN are carried out in it. The server then runs as the image runs it: its user, command and
environment, no capabilities, a read-only root, a volume for /data, PID 1 of a process namespace, and no network.
Differs from the image: the Python and C library of this machine, and no build-packages.sh (the compiler must be here).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from dockerfile import Stage, read_stages
from rehearse_checks import check_server

SOURCE = Path(__file__).parent.parent
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
DEVICES = ("null", "zero", "random", "urandom")
SKIPPED = "/deploy/build-packages.sh"
CLONE_NEWPID, CLONE_NEWNET, PR_SET_PDEATHSIG = 0x20000000, 0x40000000, 1  # as sched.h and prctl.h have them
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
BUILD_ENVIRONMENT = ("PATH", "PIP_CERT", "PIP_INDEX_URL", "CMAKE_BUILD_PARALLEL_LEVEL")


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def bind(source: Path, target: Path, *, read_only: bool) -> None:
    """Show a file or folder of this machine in a root folder."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount("--bind", source, target)
    if read_only:
        mount("-o", "remount,bind,ro", target)


def create_root(root: Path) -> None:
    """Create a root folder with the system of this machine, /dev, /proc and /tmp."""
    root.mkdir(mode=0o755)
    mount("--bind", root, root)
    for folder in map(Path, SYSTEM_FOLDERS):
        target = root / folder.relative_to("/")
        if folder.is_symlink():
            target.symlink_to(folder.readlink())
        elif folder.is_dir():
            bind(folder, target, read_only=True)
    python = Path(sys.base_prefix)
    if not python.is_relative_to("/usr"):
        bind(python, root / python.relative_to("/"), read_only=True)
    for name in DEVICES:
        bind(Path("/dev", name), root / "dev" / name, read_only=False)
    (root / "dev" / "fd").symlink_to("/proc/self/fd")
    for name, kind in (("proc", "proc"), ("tmp", "tmpfs")):
        (root / name).mkdir()
        mount("-t", kind, kind, root / name)


def run_inside(root: Path, words: list[str], environment: dict[str, str]) -> None:
    shell = ["chroot", str(root), "/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items())]
    subprocess.run([*shell, *words], check=True)


def build_stage(stage: Stage, roots: dict[str, Path], root: Path) -> None:
    """Carry out COPY and RUN of a stage, in order."""
    create_root(root)
    python = f"{Path(sys.base_prefix) / 'bin'}:"
    environment = {name: os.environ[name] for name in BUILD_ENVIRONMENT if name in os.environ}
    environment |= stage.arguments | {"PATH": f"{python}/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}
    copies = iter(stage.copies())
    for instruction, rest in stage.steps:
        if instruction == "COPY":
            origin, sources, destination = next(copies)
            base = roots[origin] if origin else SOURCE
            for source in sources:
                copy(base / source.lstrip("/"), root / destination.lstrip("/"), destination.endswith("/"), not origin)
        elif instruction == "RUN" and rest != SKIPPED:
            run_inside(root, ["/bin/sh", "-c", rest], environment)


def copy(source: Path, target: Path, into: bool, from_context: bool) -> None:
    """Copy as COPY does: into a folder if its name ends with a slash; of a folder its content."""
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.so") if from_context else None  # as .dockerignore
        shutil.copytree(source, target, symlinks=True, ignore=ignored)
        return
    destination = target / source.name if into else target
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, destination)


class Container:
    """The last stage, with its volume."""

    def __init__(self, stage: Stage, root: Path, volume: Path) -> None:
        self.stage, self.root = stage, root
        shutil.copytree(root / "data", volume)  # as an engine fills a new volume
        user, _, group = stage.last("USER").partition(":")
        for folder in (volume, *volume.rglob("*")):
            os.chown(folder, int(user), int(group))
        self.grace = 60.0  # seconds, as stop_grace_period in compose.yaml
        capabilities = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        self.prefix = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *capabilities]
        (root / "run" / "secrets").mkdir(parents=True)
        (root / "run" / "secrets" / "admin_key").touch()
        bind(volume, root / "data", read_only=False)
        mount("-o", "remount,bind,ro", root)

    def set_secret(self, key: str) -> None:
        """Let the file /run/secrets/admin_key have this content."""
        file = self.root.parent / "admin_key"
        file.write_text(key)
        bind_target = self.root / "run" / "secrets" / "admin_key"
        mount("--bind", file, bind_target)

    def start(self, words: list[str], **environment: str) -> subprocess.Popen[str]:
        """Run a command as the image's user, as PID 1 of its own namespace; output and errors in one pipe."""
        base = {"PATH": "/usr/bin:/bin", **self.stage.values("ENV"), **environment}
        base["PATH"] = base["PATH"].replace("$PATH", "/usr/bin:/bin")
        settings = [f"{name}={value}" for name, value in base.items()]
        directory = ["/usr/bin/env", "-i", "-C", self.stage.last("WORKDIR"), *settings]
        command = ["chroot", str(self.root), *self.prefix, *directory, *words]
        launcher = [sys.executable, __file__, "--as-init", *command]
        return subprocess.Popen(launcher, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def serve(self, **environment: str) -> subprocess.Popen[str]:
        """Run the image without arguments."""
        return self.start([*self.stage.command("ENTRYPOINT"), *self.stage.command("CMD")], **environment)


def unshare(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(namespace):
        raise OSError(ctypes.get_errno(), "unshare")


def leave_network() -> None:
    """Let this process, and those that it starts, see no network but a loopback of their own."""
    unshare(CLONE_NEWNET)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def run_as_init(command: list[str]) -> int:
    """Run a command as PID 1, where signals without a handler are ignored, and pass SIGTERM on to it."""
    unshare(CLONE_NEWPID)
    libc = ctypes.CDLL(None)
    child = subprocess.Popen(command, preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
    return child.wait()


def folder_mib(folder: Path) -> float:
    return sum(file.lstat().st_size for file in folder.rglob("*")) / 2**20


def rehearse(work: Path) -> None:
    start = time.monotonic()
    *others, image = read_stages()
    roots: dict[str, Path] = {}
    for stage in others:
        roots[stage.name] = work / stage.name
        build_stage(stage, roots, roots[stage.name])
    root = work / "image"
    build_stage(image, roots, root)
    print(f"built in {time.monotonic() - start:.1f} s")
    packages = next((root / "opt" / "stillhash" / "lib").glob("python*/site-packages"))
    print(f"/opt/stillhash: {folder_mib(root / 'opt' / 'stillhash'):.1f} MiB, site-packages {folder_mib(packages):.1f}")
    for size, name in sorted(((folder_mib(one), one.name) for one in packages.iterdir() if one.is_dir()), reverse=True)[
        :8
    ]:
        print(f"  {size:6.1f} MiB  {name}")
    leave_network()
    check_server(Container(image, root, work / "volume"), image.arguments["VERSION"])
    print(f"rehearsal passed in {time.monotonic() - start:.1f} s")


def main() -> int:
    match sys.argv[1:]:
        case ["--as-init", *command]:
            return run_as_init(command)
        case ["--unshared", folder]:
            rehearse(Path(folder))
            return 0
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        print("rehearsal: expected root on Linux with unshare (util-linux), got another system", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory(prefix="stillhash-image-") as folder:  # removed where nothing is mounted in it
        Path(folder).chmod(0o755)
        own_mounts = ["unshare", "--mount", "--propagation", "private"]
        return subprocess.run([*own_mounts, sys.executable, "-u", __file__, "--unshared", folder]).returncode


if __name__ == "__main__":
    sys.exit(main())
