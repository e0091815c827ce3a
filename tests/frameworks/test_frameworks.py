"""All tests that run frameworks, in one file: its processes import each framework once.

pytest-xdist gives a file to one process, and every file would have pools of its own.
"""

import pytest

from tests.frameworks.attached import *  # noqa: F403
from tests.frameworks.auto import *  # noqa: F403
from tests.frameworks.damage import *  # noqa: F403
from tests.frameworks.loss import *  # noqa: F403
from tests.frameworks.other_adapters import *  # noqa: F403
from tests.frameworks.packed import *  # noqa: F403
from tests.frameworks.rows import *  # noqa: F403
from tests.frameworks.trainer import *  # noqa: F403
from tests.frameworks.training import *  # noqa: F403

pytestmark = pytest.mark.slow
