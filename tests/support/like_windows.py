"""A pytest plugin: run any tests with the code for Windows, see windows_stand_in.py.

PYTHONPATH=. pytest -p tests.support.like_windows tests/collection/test_forgetting.py
"""

from tests.support.windows_stand_in import install

install()
