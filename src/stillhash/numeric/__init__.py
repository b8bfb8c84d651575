"""Arrays in, arrays out: codes, hash functions, target codes, learning and search kernels.

Callers validate their input once (`validation`); everything else here trusts its arguments.
"""
