"""Exact search on a GPU, with the same answers as on the processor."""

from stillhash.search.gpu.gpu_scan import CardFilter, GpuScan, index_for, parse_device, restore_for, searcher_for

__all__ = ["CardFilter", "GpuScan", "index_for", "parse_device", "restore_for", "searcher_for"]
