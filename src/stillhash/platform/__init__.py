"""All that differs between operating systems: the rest of the package calls `SYSTEM`."""

import sys

from stillhash.platform.base import OperatingSystem


def operating_system(platform: str) -> OperatingSystem:
    """Return the operating system that Python calls `platform` in `sys.platform`; on Windows there is no other."""
    if sys.platform != "win32" and platform != "win32":
        from stillhash.platform.posix import Linux, MacOS, Posix

        return {"linux": Linux, "darwin": MacOS}.get(platform, Posix)()
    from stillhash.platform.windows import Windows

    return Windows()


SYSTEM = operating_system(sys.platform)
