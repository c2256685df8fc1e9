"""The corpus of single files: what must be refused, why, and what must be accepted all the same.

Each case is a function that makes the bytes of one small file. The themes are in files_*.py.
"""

from . import files_duplicates, files_entries, files_foreign, files_json, files_length, files_tiling, files_valid
from .cases import Registry

CASES = Registry().merge(
    files_length.CASES,
    files_json.CASES,
    files_duplicates.CASES,
    files_entries.CASES,
    files_foreign.CASES,
    files_tiling.CASES,
    files_valid.CASES,
)
REFUSED = CASES.refused
VALID = CASES.accepted
