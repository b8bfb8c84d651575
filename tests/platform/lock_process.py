"""Lock a file, report it, and wait to be killed: python -m tests.platform.lock_process FILE."""

import os
import sys
import time

from stillhash.platform import SYSTEM

if __name__ == "__main__":
    print(SYSTEM.try_lock(os.open(sys.argv[1], os.O_RDWR)), flush=True)
    time.sleep(600)
