"""The laws of a device and the steps on the test accelerator: prints a line of JSON for each, [law, elements, differing]."""

from __future__ import annotations

import json
import traceback
import warnings

from tests.devices.accelerator import start


def main() -> None:
    """Print the laws; a law that raises has its traceback in place of the counts."""
    warnings.simplefilter("ignore")
    device = start()
    from tests.devices.laws import laws
    from tests.devices.steps import steps

    for name, law in (*laws(), *steps()):
        try:
            print(json.dumps([name, *law(device)]), flush=True)
        except Exception:
            print(json.dumps([name, traceback.format_exc()]), flush=True)


if __name__ == "__main__":
    main()
