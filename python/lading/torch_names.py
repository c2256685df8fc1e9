"""Names of torch that are not public and that several modules import.

All private names are looked for first, at once. So a missing one is an error with the versions that work
(private_names.py), and not whichever import fails first.
"""

from __future__ import annotations

from .private_names import check

check("torch")

from torch.overrides import _get_current_function_mode_stack as _get_current_function_mode_stack  # noqa: E402
from torch.utils._device import DeviceContext as DeviceContext  # noqa: E402
from torch.utils._device import _device_constructors as _device_constructors  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # noqa: E402
from torch.utils._python_dispatch import _disable_current_modes as _disable_current_modes  # noqa: E402
from torch.utils._pytree import tree_flatten as tree_flatten  # noqa: E402
from torch.utils._pytree import tree_map as tree_map  # noqa: E402
