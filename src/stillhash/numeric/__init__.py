"""Arrays in, arrays out: codes, hash functions, target codes, learning and search kernels.

Callers check their input once (`checks`); everything else here trusts what it is given.
"""
