"""Lock a file by the code of one system, report it, and wait to be killed: python -m tests.platform.lock_process."""

import os
import sys
import time

from stillhash.platform import operating_system
from tests.support.windows_stand_in import stand_in_msvcrt

if __name__ == "__main__":
    platform, file = sys.argv[1:]
    sys.modules["msvcrt"] = stand_in_msvcrt()
    print(operating_system(platform).try_lock(os.open(file, os.O_RDWR)), flush=True)
    time.sleep(600)
