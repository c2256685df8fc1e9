"""The corpus of sharded directories, indexes and Hugging Face caches.

Each case is a function that fills an empty folder and says how to call the command. The themes are in
directories_*.py.
"""

from . import directories_cache, directories_index, directories_paths
from .cases import Registry

CASES = Registry().merge(directories_index.CASES, directories_paths.CASES, directories_cache.CASES)
REFUSED = CASES.refused
VALID = CASES.accepted
