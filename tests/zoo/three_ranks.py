"""zoo_ranks.py with FSDP2 on three ranks instead of two, and with its arguments: almost nothing divides by three.

python three_ranks.py check --layout fsdp2 --loader lading_loader:load_every_build --list dev40.txt
"""

import sys

import zoo_ranks

if __name__ == "__main__":
    zoo_ranks.LAYOUTS["fsdp2"] = (3,)
    sys.exit(zoo_ranks.main())
