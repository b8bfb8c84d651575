"""Every method keeps the contract."""

from tests.contracts.hashers import *  # noqa: F403
